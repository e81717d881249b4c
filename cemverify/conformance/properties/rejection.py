"""Bad input raises a clear error from the implementation itself: a ValueError or TypeError with a message.

Returning an output is a violation, and so is any other error that a tensor library raises deep inside. So is a
setting of the process, or an argument, that the refused call leaves changed: what a function sets and restores at its
end, it must also restore when it raises.

Weights are spoiled one by one, in cases of more than one feature, so that nothing too short could be broadcast. A
number that is not finite may stand anywhere, also in arrays of thousands of numbers. Finite numbers are accepted,
however large.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.answers import as_tensor
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.changes import form_of, held
from cemverify.conformance.asking.experiments import experiment
from cemverify.conformance.asking.process_state import SETTINGS, ProcessState
from cemverify.conformance.implementations.faults import Raised, words
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, yes
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.properties.base import Check, OneAfterTheOther, Over, Property
from cemverify.conformance.properties.functions import dtype_of_its_turn
from cemverify.conformance.questions.aims import Questions
from cemverify.conformance.questions.cases import Case, Layer, unchecked
from cemverify.conformance.questions.spaces import Space, mixed

Spoil = Callable[[Case], Iterable[tuple[str, Case]]]  # ways to spoil a case, each in a word or two
_AT_ONCE = 8  # ways at once, in the time of half as many calls: bad input is refused early


def rejects(spoil: Spoil) -> Check:
    """A check that the valid case is answered and that each of its spoiled ones is refused."""

    def check(caller: Caller, case: Case) -> Evidence:
        caller.output(case)
        ways = iter(spoil(case))
        while some := list(islice(ways, _AT_ONCE)):
            outcomes = _outcomes(caller, case.layer, [spoiled for _, spoiled in some])
            for (way, _), outcome in zip(some, outcomes, strict=True):
                if outcome != "refused":
                    claim = Compared.REFUSED(f"bad input is refused (1 = yes): {way}: it {outcome}")
                    return Evidence.of(Comparison(claim, torch.zeros(1), torch.ones(1), torch.zeros(1)))
        return Evidence.of(yes(Compared.REFUSED("bad input is refused"), holds=True))

    return check


def rejects_only_what_is_not_finite(caller: Caller, case: Case) -> Evidence:
    """NaN and infinity are refused. Finite numbers are accepted, also two whose sum would be infinite.

    These stand where they are multiplied by zero, so the answer for the other features is as with zeros there.
    """
    refused = rejects(_not_finite)(caller, case)
    if refused.worst.margin > 1:
        return refused
    caller = caller.at(dtype_of_its_turn(caller, case))
    case = case.to(caller.dtype).to(torch.float64)
    taken = []
    for name, zeros, large in _with_large_numbers(case, torch.finfo(caller.dtype).max):
        claim = f"output with two finite numbers in {name} whose sum is infinite"
        inner = (..., slice(1, -1))
        got, expected, tolerance = (
            a[inner] for a in (caller.output(large), golden(zeros), output_budget(zeros, caller.dtype))
        )
        if tolerance.isfinite().all():
            taken.append(Comparison(claim, got, expected, tolerance))
    return Evidence.of(*refused.comparisons, *taken)


@experiment(lambda arguments: [None] * len(arguments.cases), calls=4)
def _outcomes(caller: Caller, name: str, cases: list[Case]) -> list[str]:
    """The outcome of each call with bad input: "refused", or what it did instead."""
    with caller.guarded():
        before = ProcessState.now(_OTHERS)  # as each of the calls finds it
    return [_outcome(caller, name, case, before) for case in cases]


_TRACING, _OTHERS = SETTINGS[:1], SETTINGS[1:]  # the tracing of lines is set anew for every call


def _outcome(caller: Caller, name: str, case: Case, before: ProcessState) -> str:
    x, h, weights = caller.arguments(case)
    if caller.kind.name == "torch" and "gradients" not in caller.subject.not_offered and case.turn(2):
        for array in (x, h, *weights.values()):  # as parameters do
            if array.is_floating_point():
                array.requires_grad_()
    config, changed = copy.deepcopy(case.config), []
    arrays = {"x": x, "h": h, **weights}
    before_it = {key: (as_tensor(array), form_of(array)) for key, array in arrays.items()}
    try:
        with caller.guarded():
            tracing = ProcessState.now(_TRACING)
            try:
                caller.functions[name](x, h, weights, config)
            finally:
                changed = [f"the process's {setting}" for setting in (*tracing.restore(), *before.restore())]
                changed += [key for key, array in arrays.items() if not _is_as_it_was(array, *before_it[key])]
                if ["x", "h", *weights] != [*arrays] or any(w is not arrays[key] for key, w in weights.items()):
                    changed.append("the mapping of weights")
                if held(config) != held(case.config):
                    changed.append("the configuration")
    except Raised as raised:
        error = raised.__cause__
        assert error is not None
        if not isinstance(error, ValueError | TypeError):
            return f"raised {words(error)}, which is not a ValueError or TypeError"
        if not error.args:
            return f"raised {words(error)} without a message"
        return f"left {', '.join(changed)} changed" if changed else "refused"
    return "accepted it"


def _is_as_it_was(array: Any, numbers: Tensor, form: dict[str, Any]) -> bool:
    """Whether an argument has the numbers and the form that it had; NaN is NaN."""
    return form_of(array) == form and torch.equal(as_tensor(array).nan_to_num(0.5), numbers.nan_to_num(0.5))


def properties() -> Iterator[Property]:
    """Each way of spoiling a case, for attention and for the MLP."""
    both: tuple[Layer, ...] = ("attention", "mlp")
    for layer in both:
        any_options, usual = Over(mixed(layer, textures=("plain",))), Over(Space(layer, textures=("plain",)))
        shapes = "a weight that is transposed, has an axis more or fewer, or one that is too long by 1 or cut to 1"
        integers = "x, h, a weight or all of them with any integer dtype or bool"
        not_finite = "NaN or infinity anywhere in x, h or a weight, however large the array, and for no finite number"
        each = _with_each_weight(layer)
        listed = OneAfterTheOther(tuple(each), len(each))
        yield _property(layer, "wrong-weight-shape", shapes, rejects(_misshapen), listed)
        yield _property(layer, "integer-input", integers, rejects(_integers), listed)
        spaces = [*each, *_of_many_numbers(layer)]
        yield _property(
            layer,
            "not-finite",
            not_finite,
            rejects_only_what_is_not_finite,
            OneAfterTheOther(tuple(spaces), len(spaces)),
        )
        ways: list[tuple[str, str, Spoil, Questions, str]] = [
            ("nan-input", "NaN anywhere in x", _nan_x, any_options, "validation"),
            ("mismatched-memory", "x and h with different numbers of tokens", _other_memory, any_options, "start"),
            ("zero-steps", "T = 0", _config("steps", 0), usual, "steps"),
            ("negative-step-size", "a negative step size", _config("step_size", *_NEGATIVE), usual, "step-size"),
        ]
        if layer == "attention":
            negative, zero = _config("temperature", *_NEGATIVE), _config("temperature", 0.0)
            ways += [
                ("negative-temperature", "a negative temperature", negative, usual, "temperature"),
                ("zero-temperature", "a temperature of zero", zero, usual, "temperature"),
            ]
        for name, fault, spoil, questions, need in ways:
            yield _property(layer, name, fault, rejects(spoil), questions, need)


_NEGATIVE = (-1.0, -1e-4, -(2.0**-40))  # a check that rounds loses the small ones

# every weight, each with an option of its own, so that an implementation without one is tested on the rest
_PER_HEAD = PreconditionerConfig("low-rank-printed", per_head=True)
_KINDS = (PreconditionerConfig("diagonal"), PreconditionerConfig("low-rank"))
_NORMS = tuple({"norm": norm} for norm in ("scalar", "channel", "folded"))
_BIASES = ({"diagonal": "shared"}, {"diagonal": "per-head"}, {"position": "self-cross"})
# no two axes of a weight alike, and none of length 1
_SIZES = {"B": (2,), "J": (3,), "D": (6, 8), "K": (2,), "R": (4,), "M": (5,), "rank": (3,)}


def _with_each_weight(layer: Layer) -> Sequence[Space]:
    options = (*_NORMS, *(_BIASES if layer == "attention" else ()))
    kinds = (*_KINDS, *((_PER_HEAD,) if layer == "attention" else ()))
    spaces = [
        Space(layer),
        *(Space(layer, option) for option in options),
        *(Space(layer, {}, kind) for kind in kinds),
    ]
    return [replace(space, sizes=_SIZES, textures=("plain",)) for space in spaces]


def _of_many_numbers(layer: Layer) -> Sequence[Space]:
    """Spaces in whose cases every array has more than a thousand numbers."""
    wide = {**_SIZES, "D": (1100,)}
    of_weights = [
        (Space(layer), wide),
        (Space(layer, {"norm": "channel"}), wide),
        (Space(layer, {}, PreconditionerConfig("diagonal")), wide),
        (Space(layer, {}, PreconditionerConfig("low-rank")), {**_SIZES, "D": (190,), "rank": (7,)}),
    ]
    if layer == "attention":
        of_weights += [
            (Space(layer, {"diagonal": "shared"}), wide),
            (Space(layer, {"position": "self-cross"}), {**_SIZES, "K": (1100,)}),
        ]
    return [replace(space, sizes=sizes, textures=("plain",)) for space, sizes in of_weights]


def _property(
    layer: Layer, name: str, fault: str, check: Check, questions: Questions, need: str = "validation"
) -> Property:
    return Property(
        f"rejection/{layer}/{name}",
        claim=f"A ValueError or TypeError with a message is raised for {fault}.",
        source="contract",
        formula="F(bad input) raises ValueError or TypeError with a message, and changes nothing else; F(good) does "
        "not",
        why="Bad input that is accepted broadcasts, truncates or spreads NaN, and is found weeks later.",
        check=check,
        questions=questions,
        needs=Space(layer).features() | {"validation", need},
        premise="the valid input is answered",
        floor=1.0,
        controls=frozenset({"identity"}),
    )


def _misshapen(case: Case) -> Iterator[tuple[str, Case]]:
    for name, w in case.weights.items():
        for way, wrong in _wrong_shapes(w).items():
            yield f"{name} with {way}", _having(case, {name: wrong})
        if w.dim() > 1 and w.shape[-1] != w.shape[-2]:  # as many numbers, in another order
            yield f"{name} transposed", _having(case, {name: w.mT.contiguous()})


def _wrong_shapes(w: Tensor) -> dict[str, Tensor]:
    """Weights of other shapes, by what is wrong with them."""
    ways = {"an axis more": w[None], "an axis more at its end": w[..., None]}
    for axis in range(w.dim()):
        first = w.narrow(axis, 0, 1)
        ways[f"axis {axis} one too long"] = torch.cat((w, first), axis)
        ways[f"no axis {axis}"] = w.select(axis, 0)
        if w.shape[axis] > 1:
            ways[f"axis {axis} cut to length 1"] = first
    return {way: wrong.contiguous() for way, wrong in ways.items()}


def _other_memory(case: Case) -> Iterator[tuple[str, Case]]:
    yield "h with a token more", replace(case, h=torch.cat((case.h, case.h[:, :1]), dim=1))
    if case.h.shape[1] > 1:
        yield "h with a token less", replace(case, h=case.h[:, 1:])


_INTEGERS = (
    *(torch.bool, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.uint8, torch.uint16, torch.uint32, torch.uint64),
)


def _integers(case: Case) -> Iterator[tuple[str, Case]]:
    """Each dtype in a third of the arrays, and a third of the dtypes in all; the case decides which ones."""
    for turn, dtype in enumerate(_INTEGERS, case.turn(3)):
        word = str(dtype).removeprefix("torch.")
        whole = {name: array.abs().to(dtype) for name, array in _arrays(case).items()}
        yield from ((f"{name} of {word}", _having(case, {name: whole[name]})) for name in list(whole)[turn % 3 :: 3])
        if turn % 3 == 0:
            yield f"all arrays of {word}", _having(case, whole)


def _nan_x(case: Case) -> Iterator[tuple[str, Case]]:
    B, J, D = case.x.shape
    for row, token, feature in sorted({(0, J - 1, 0), (B - 1, 0, D - 1), (B // 2, J // 2, D // 2)}):
        x: Tensor = case.x.clone()
        x[row, token, feature] = math.nan
        yield f"NaN in row {row}, token {token}", _having(case, {"x": x})


def _not_finite(case: Case) -> Iterator[tuple[str, Case]]:
    """Each value in each array, at its beginning, at its end or somewhere between; the case decides which."""
    for name, array in _arrays(case).items():
        places = (-1, 0, case.turn(array.numel()))
        for turn, value in enumerate((math.nan, math.inf, -math.inf), case.turn(3)):
            spoiled = array.clone().flatten()
            spoiled[places[turn % 3]] = value
            yield f"{value} in {name}", _having(case, {name: spoiled.reshape(array.shape)})


def _with_large_numbers(case: Case, large: float) -> Iterator[tuple[str, Case, Case]]:
    """Per array a case with zeros in the first and the last feature, and one with large numbers in their place.

    The large numbers are only multiplied by zeros, so no product overflows. Left out are states that are squared or
    multiplied by a number, and weights of which a norm, a root or a quotient is taken.
    """
    ends = [0, -1]

    def at_ends(array: Tensor, number: float) -> Tensor:
        array = array.clone()
        array[..., ends] = number
        return array

    case = _having(case, {n: at_ends(a, 0.0) for n, a in _arrays(case).items() if n in ("x", "h", *_PARTNERS)})
    apart = case.x is not case.h and "diagonal" not in case.weights
    fit = {"x": apart and "gain" not in case.weights, "h": apart, "P_d": "P_U" not in case.weights, "diagonal": True}
    for name, array in _arrays(case).items():
        if name in _PARTNERS:  # it is read twice: with x, and when its first row is added to the output
            partner, row = case.weights[_PARTNERS[name]].clone(), (0,) * (array.dim() - 1)
            partner[row] = 0.0
            zeros = _having(case, {_PARTNERS[name]: partner})
            part = zeros.weights[name].clone()
            part[row] = at_ends(part[row], large)
            yield name, zeros, _having(zeros, {name: part})
        elif fit.get(name):
            yield name, case, _having(case, {name: at_ends(array, large)})


_PARTNERS = {"W_Q": "W_K", "W_K": "W_K", "V": "W", "W": "W"}  # which projection makes the values that multiply rows


def _arrays(case: Case) -> dict[str, Tensor]:
    """Every array by its name; h alone where x is the same."""
    return {"x": case.x, **({} if case.h is case.x else {"h": case.h}), **case.weights}


def _having(case: Case, arrays: Mapping[str, Tensor]) -> Case:
    """The case with other arrays under these names, of `_arrays`."""
    x = arrays.get("x", case.x)
    h = x if case.h is case.x else arrays.get("h", case.h)
    return replace(case, x=x, h=h, weights={name: arrays.get(name, w) for name, w in case.weights.items()})


def _config(option: str, *values: float) -> Spoil:
    return lambda case: [
        (f"{option} = {value:g}", replace(case, config=unchecked(case.config, **{option: value}))) for value in values
    ]
