"""The functions of an implementation under the contract: how each is called, and what it must answer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.models import BlockConfig
from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller, quiet
from cemverify.conformance.asking.changes import changes_of
from cemverify.conformance.asking.contexts import answered_in, products_in, refused
from cemverify.conformance.asking.differentiation import arguments_of
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.asking.surroundings import SURROUNDINGS
from cemverify.conformance.implementations.faults import Discard, NotFinite, Raised
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.oracle.golden import leaves_range
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.properties.base import Check as Judge
from cemverify.conformance.properties.base import Offer, Over, Property, statement
from cemverify.conformance.properties.function_calls import Answer, Call
from cemverify.conformance.questions.cases import Case, Config
from cemverify.conformance.questions.contexts import USUAL, Context, factors
from cemverify.conformance.questions.spaces import Space, mixed, scattered_case

Check = Callable[[Function, Caller, Case], Evidence]
MOVES = "the right answer is not that of a layer that does nothing"


@dataclass(frozen=True)
class FunctionCall(Call):
    """A call of one function of a CEM implementation. Its answer is one array, which has no name."""

    function: Function
    caller: Caller
    case: Case

    def answer(self) -> Answer:
        return {"": self.caller.answer(self.function.name, self.case)}

    def answer_between(self) -> Answer:
        other, tokens = elsewhere(self.case), self.case.h.shape[1]
        if tokens >= LONG_ROW:  # whatever grows with the longest row met so far grows here
            other = lengthened(other, 3 * tokens, 1)
        return {"": self.caller.answer(self.function.name, other)}

    def tolerance(self, usual: Answer) -> Tensor:
        if self.function.is_energy:
            return self.function.tolerance(self.case, self.caller.dtype)
        return relation_budget(self.case, usual[""], self.caller.dtype)  # a wrong formula is not a wrong mode

    def compared(
        self, claim: str, got: Answer, expected: Answer, tolerance: Tensor | None = None
    ) -> list[Comparison]:
        return [Comparison(claim, got[""], expected[""], torch.zeros(()) if tolerance is None else tolerance)]

    def moved(self, usual: Answer, tolerance: Tensor) -> bool:
        return self.function.moved(usual[""], self.case, tolerance)

    def changes(self) -> tuple[list[str], list[str]]:
        offer = Offer(frozenset(self.caller.subject.not_offered), kind=self.caller.kind)
        values = factors(Space(self.function.layer, apart=not self.function.starts_at_the_memory), offer)
        mode, before = (values[name][self.case.turn(len(values[name]))] for name in ("mode", "before"))
        cases = [self.case, *_unmet(self.case, self.caller)]
        if self.caller.kind.compiles:  # what comes before, too, and an energy for steps that it does not take
            before = USUAL
            cases = cases[:1] if self.function.is_energy or self.case.sizes["T"] > 1 else cases
        try:
            return changes(self.caller, self.function.name, cases, Context(mode, before))
        except (NotFinite, Raised):
            if any(leaves_range(case, self.caller.dtype) for case in cases[1:]):
                raise Discard("with more steps the right answer is so large that its square overflows") from None
            raise

    def answer_within(self, surroundings: str) -> Answer:
        return {"": _answer_within(self.caller, self.function.name, self.case, surroundings)}

    def recorded(self) -> Mapping[str, Answer]:
        return {
            f"output with gradients recorded{of} = without": self._in_mode("recorded", which=which)
            for of, which in _RECORDED.items()
        }

    def unrecorded(self) -> Answer:
        return self._in_mode("unrecorded")

    def on(self, device: str) -> Answer:
        return {"": replace(self.caller, device=device).answer(self.function.name, self.case)}

    def scaled(self, factor: float) -> FunctionCall:
        weights = {name: w * factor for name, w in self.case.weights.items()}
        return replace(self, case=replace(self.case, weights=weights).with_states(lambda states: states * factor))

    def mapped(self, calls: Sequence[FunctionCall]) -> Mapping[str, tuple[Sequence[FunctionCall], Answer]]:
        cases, weights = [call.case for call in calls], self.case.weights
        shared = [replace(case, weights=weights) for case in cases]  # several inputs to one layer
        everything, states = replace(self, case=_stacked(cases)), replace(self, case=_stacked(shared, weights))
        return {
            "mapped = looped": (calls, everything._in_mode("mapped")),
            "mapped over x and h alone = looped": (
                [replace(self, case=case) for case in shared],
                states._in_mode("mapped", axes=(0, None)),
            ),
        }

    def _in_mode(self, mode: str, **options: Any) -> Answer:
        """What the function returns in a mode: after a method of `ArrayKind` transformed it, with these options."""
        return {"": _answered_in_mode(self.caller, self.case, mode, options)}


_RECORDED = {"": (0, 1), " for x and h alone": (0,), " for the weights alone": (1,)}  # of states and weights


def _stacked(cases: Sequence[Case], weights: Mapping[str, Tensor] | None = None) -> Case:
    """Cases stacked along a further first axis of x, h and the weights, or of x and h with these weights."""
    first = cases[0]
    x, h = (torch.stack([getattr(case, name) for case in cases]) for name in ("x", "h"))
    several = {name: torch.stack([case.weights[name] for case in cases]) for name in first.weights}
    return replace(first, x=x, h=x if first.h is first.x else h, weights=weights or several)


def elsewhere(case: Case) -> Case:
    """A case with the weights of this one, at another state and memory."""
    return case.with_states(lambda states: states + 1)


@experiment(lambda arguments: arguments.caller.shape(arguments.name, arguments.case))
def _answer_within(caller: Caller, name: str, case: Case, surroundings: str) -> Tensor:
    with SURROUNDINGS[surroundings]():
        there = caller.answer(name, case)
    return there.clone()  # so that it is no tensor of inference mode


@experiment(calls=2)
def changes(
    caller: Caller, name: str, cases: Sequence[Case], context: Context | None = None
) -> tuple[list[str], list[str]]:
    """The settings that calls changed, and the libraries whose random generator they seeded.

    Calls are made as in `changes_of`, and in a context if there is one; the answer is not judged here.

    Args:
        cases: the calls that are made as usual; the first of them is also made in the other ways.
    """
    caller = replace(caller, noticed=[])
    calls = [caller.bound(name, case) for case in cases]

    def within(context: Context) -> None:
        first, shape = cases[0], caller.shape(name, cases[0])
        if "record" in context.mode:
            cotangent = torch.ones(shape, dtype=torch.float64)
            products_in(caller, first, cotangent, name, tuple(arguments_of(first, name)), context)
        else:
            answered_in(caller, name, first, context, shape)

    more = () if context is None else (lambda: within(context),)
    return changes_of(caller, calls, more, [lambda: caller.raw(name, refused(cases[0]))])


def _unmet(case: Case, caller: Caller) -> list[Case]:
    """The case with options and sizes that no call has had: many steps, and one more token or a long row.

    If every size is compiled anew, the size stays.
    """
    absent, kind = caller.subject.not_offered, caller.kind
    options: dict[str, Any] = {} if "steps" in absent else {"steps": _MANY_STEPS}
    if "step-size" not in absent:
        turn = 0 if kind.compiles else case.turn(997)
        options["step_size"] = (1 + turn / 997) / 1024  # so small that no state grows out of range
    if isinstance(case.config, BlockConfig):
        config: Config = BlockConfig(replace(case.config.attention, **options), replace(case.config.mlp, **options))
    else:
        config = replace(case.config, **options)
    tokens, rows = case.h.shape[1] + 1, case.h.shape[0]
    if case.turn(_ONE_IN) == 0:
        tokens, rows = _LONG, 1
    return [replace(case, config=config), *(() if kind.compiles else [lengthened(case, tokens, rows)])]


def lengthened(case: Case, tokens: int, rows: int) -> Case:
    """A case of at most so many rows, with its tokens repeated up to the given number."""

    def longer(states: Tensor) -> Tensor:
        return states[:rows].repeat(1, -(-tokens // states.shape[1]), 1)[:, :tokens]

    return case.with_states(longer)


LONG_ROW = 44  # tokens: more than a tile of 16 or 32
_MANY_STEPS, _LONG = 17, 130
_ONE_IN = 3  # one case in so many has a long row


@experiment(lambda arguments: arguments.case.h.shape)
def _answered_in_mode(caller: Caller, case: Case, mode: str, options: dict[str, Any]) -> Tensor:
    """The output of a layer, a function of states and weights, in a mode. A block is a function of h alone."""
    x, h, weights = caller.arguments(case)
    states = (h,) if case.layer == "block" else (x, h)
    function = caller.functions[case.layer]

    def layer(states: Any, weights: Any) -> Any:
        return function(*states, weights, case.config)

    with caller.guarded(), quiet():
        return as_tensor(getattr(caller.kind, mode)(layer, **options)(states, weights), case.h.shape)


def lower_dtypes(caller: Caller) -> list[torch.dtype]:
    """float32 and bfloat16, if offered."""
    lower = {"float32": torch.float32, "bfloat16": torch.bfloat16}
    return [dtype for name, dtype in lower.items() if f"dtype:{name}" not in caller.subject.not_offered]


def dtype_of_its_turn(caller: Caller, case: Case) -> torch.dtype:
    """float64 for most questions, another offered dtype for some, because many layers have branches for each.

    If the caller's dtype is not float64, every question has that dtype.
    """
    lower, turn = lower_dtypes(caller), case.turn(4)
    return lower[turn] if caller.dtype == torch.float64 and turn < len(lower) else caller.dtype


def contract_claim(
    name: str,
    *,
    of: Iterable[Function] = EVERY,
    needs: Iterable[str] = (),
    every_dtype: bool = False,
    **more: Any,
) -> Callable[[Check], Check]:
    """Put above a check of a function: what it judges of each function, over mixed options.

    Most of its questions are scattered ones, which cover every pair of options; a few small ones make a violation
    readable.

    Args:
        name: the last part of the ids. of: the functions. every_dtype: whether some questions are in the lower
            dtypes. more: of `Property`.
    """

    def asked(function: Function, check: Check) -> Property:
        space = mixed(function.layer, steps=(1, 2), apart=not function.starts_at_the_memory)

        def checked(caller: Caller, case: Case) -> Evidence:
            if every_dtype:
                caller = caller.at(dtype_of_its_turn(caller, case))
            return check(function, caller, function.question(case, caller.dtype))

        return Property(
            f"contract/{function.name.replace('_', '-')}/{name}",
            source="docs/contract.md",
            check=checked,
            questions=Over(space),
            needs=frozenset({function.name, *needs}),
            **more,
        )

    return statement(lambda check: [asked(function, check) for function in of])


def of_all(name: str, *, space: Space, needs: Iterable[str] = (), **more: Any) -> Callable[[Judge], Judge]:
    """Put above a check of cases: what it judges of all functions together, first of all, in a new process."""
    return statement(
        lambda check: [
            Property(
                f"contract/all/{name}",
                source="docs/contract.md",
                check=check,
                questions=OfAllFunctions(space),
                needs=frozenset(needs),
                first=True,
                once=True,
                **more,
            )
        ]
    )


@dataclass(frozen=True)
class OfAllFunctions(Over):
    """Cases of a block, whose parts are the questions to all functions."""

    def emptied(self, absent: Iterable[str]) -> str | None:
        return None if "attention" not in absent or self.space.within(absent).choices["activation"] else "activation"

    def scattered(self, offer: Offer, seed: int) -> Case:
        space = offer.within(self.space)
        # without an activation there is no MLP to test either; without the requested positions there are none
        usual = {**{name: values[0] for name, values in self.space.choices.items()}, "position": "none"}
        choices = {name: values or (usual[name],) for name, values in space.choices.items()}
        return scattered_case(replace(space, choices=choices), seed)
