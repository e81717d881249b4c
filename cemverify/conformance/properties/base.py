"""What a property is: a claim, its source, the questions it asks, and how one answer is judged."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType, ModuleType
from typing import Any, TypeVar

import torch
from hypothesis.strategies import SearchStrategy

from cemverify.catalogue.budgets import USUAL, Asked
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.patience import SHORT
from cemverify.conformance.implementations.arrays import TORCH, ArrayKind
from cemverify.conformance.implementations.contract import Kind, Subject
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.oracle.functions import Function, function_of
from cemverify.conformance.oracle.rivals import (
    Rival,
)
from cemverify.conformance.questions.aimed import aimed_case, quantities
from cemverify.conformance.questions.aims import Aim, Questions, aims
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.shrinking import smaller
from cemverify.conformance.questions.spaces import Space, cases, scattered_case
from cemverify.conformance.source.reading.numbers import Number

Check = Callable[[Caller, Any], Evidence]  # judges one question

FIRST = "2026.11"  # the first version of the catalogue

# Trivial answers that a property may have to reject, by name.
CONTROLS: Mapping[str, str] = MappingProxyType(
    {
        "identity": "returns x unchanged",
        "zero": "returns zeros",
        "constant": "returns ones",
        "random": "returns noise",
        "detached": "returns the right outputs without gradients",
        "random-energy": "states noise for its energy",
        "shuffled": "returns the right outputs for the wrong tokens",
    }
)


@dataclass(frozen=True)
class Offer:
    """What is known about the implementation under test."""

    absent: frozenset[str] = frozenset()  # features it does not offer
    layer: EnergyLayer | None = None  # the declaration, of an energy layer
    kind: ArrayKind = TORCH  # of the arrays that it takes

    def within(self, space: Space) -> Space:
        """The part of a space that applies to it; if each case is compiled, with few shapes and options."""
        offered = space.within(self.absent)
        return offered.compiled() if self.kind.compiles else offered

    @property
    def declared(self) -> EnergyLayer:
        """The declaration of an energy layer."""
        assert self.layer is not None
        return self.layer


@dataclass(frozen=True)
class Over(Questions):
    """Cases of a space, or of the part of it that the implementation offers."""

    space: Space

    def search(self, offer: Offer) -> SearchStrategy[Any] | None:
        if self.space.sizes:
            return None  # every size comes among the scattered cases, and nobody reads long rows of integers
        return cases(offer.within(self.space))

    def emptied(self, absent: Iterable[str]) -> str | None:
        return self.space.emptied(absent)

    def scattered(self, offer: Offer, seed: int) -> Any | None:
        return scattered_case(offer.within(self.space), seed)

    def smaller(self, offer: Offer, question: Any) -> Iterator[Any]:
        return smaller(question, offer.within(self.space))

    def aims(self, offer: Offer, numbers: Sequence[Number]) -> Iterator[Aim]:
        return aims(numbers, *quantities(offer.within(self.space)))

    def aimed(self, offer: Offer, aim: Aim, seed: int) -> Any | None:
        return aimed_case(offer.within(self.space), aim, seed)

    def reach(self) -> Mapping[str, int]:
        return self.space.reach()


_LONG = {"J": 4100, "D": 4100, "M": 8200}  # the largest sizes that are tested around a number in the code
_ALONE = {"B": (1,)}


def _is_long(space: Space, axis: str) -> bool:
    """Whether this axis is the long one of the cases of a space."""
    return max(space.sizes.get(axis, (0,))) >= SHORT


@dataclass(frozen=True)
class OneAfterTheOther(Questions):
    """A list of spaces, each of which gives one case in turn; the seed decides the numbers in it."""

    spaces: Sequence[Space]
    least: int = 1  # the fewest cases, however few spaces are offered

    def offered(self, absent: Iterable[str]) -> list[Space]:
        """The spaces whose features are all offered, without their options that are not offered.

        The layer's own function may be missing: its energy, or decoding, is tested in the same spaces.
        """
        missing = set(absent)
        return [
            s.within(missing)
            for s in self.spaces
            if not (s.features() - {s.layer}) & missing and s.emptied(missing) is None
        ]

    def emptied(self, absent: Iterable[str]) -> str | None:
        return None if self.offered(absent) else "sizes"

    def rows(self, offer: Offer) -> int:
        return max(self.least, len(self.offered(offer.absent)))

    def scattered(self, offer: Offer, seed: int) -> Case:
        spaces = [offer.within(space) for space in self.offered(offer.absent)]
        return scattered_case(spaces[seed % len(spaces)], seed)

    def smaller(self, offer: Offer, question: Case) -> Iterator[Case]:
        return smaller(question, replace(self.offered(offer.absent)[0], sizes={}))

    def aims(self, offer: Offer, numbers: Sequence[Number]) -> Iterator[Aim]:
        """Only sizes, beyond those at which other properties are tested."""
        axes = sorted({axis for space in self.offered(offer.absent) for axis in _LONG if _is_long(space, axis)})
        for number in numbers:
            size = int(number.value)
            if size == number.value and size >= SHORT:
                near = dict.fromkeys((size + 1, size, size - 1))
                yield from (Aim(axis, one, number) for axis in axes for one in near if one <= _LONG[axis])

    def aimed(self, offer: Offer, aim: Aim, seed: int) -> Case | None:
        spaces = [space for space in self.offered(offer.absent) if _is_long(space, aim.quantity)]
        if not spaces:
            return None
        space = spaces[seed % len(spaces)]
        return scattered_case(replace(space, sizes={**space.sizes, aim.quantity: (aim.size,), **_ALONE}), seed)

    def reach(self) -> Mapping[str, int]:
        each = [space.reach() for space in self.spaces]
        return {letter: max(sizes.get(letter, 0) for sizes in each) for letter in each[0]}


@dataclass(frozen=True)
class Property:
    """One claim about an implementation: its texts, and how it is judged."""

    id: str  # family/function/name; own/name
    claim: str  # one sentence
    source: str  # where the claim comes from
    # what is compared. x is the state, h the memory, x' the state after the step; eps(x; h) and xi(x; h) are the
    # attention's and the MLP's energy of one token, g the gradient in x with h fixed, eta the step size, P the
    # preconditioner, tau the temperature, N the norm; u is the unit roundoff of the dtype
    formula: str = field(repr=False)
    why: str = field(repr=False)  # what goes wrong if it does not hold, in sentences
    check: Check = field(repr=False)  # judges one question; raises `Fault` or `Discard`
    questions: Questions = field(repr=False)  # where the questions come from
    needs: frozenset[str] = frozenset()  # features without which it cannot be tested
    kind: Kind = "CEM implementation"  # the kind of implementation that it is for
    dtype: torch.dtype | None = None  # the dtype in which it is tested, if not the run's
    asked: Asked = USUAL  # how many questions, from `cemverify.catalogue.budgets`
    first: bool = False  # whether it is tested before anything else, in a process of its own
    once: bool = False  # whether a single failure proves a violation, even if it does not recur (determinism)
    looks_around: bool = False  # whether it is also tested around the numbers that stand in the code under test
    premise: str = ""  # what makes an example telling, as a phrase: "the update is not zero"
    # the share of telling examples below which a run proves nothing: it is inconclusive, never green
    floor: float = 0.1
    controls: frozenset[str] = frozenset()  # names of trivial answers, of CONTROLS, that must violate it in every run
    since: str = FIRST  # the version of the catalogue that introduced it
    # wrong implementations, by what is wrong with them, that must violate it in every run. The mutants for the
    # catalogue's own properties are not here but in `cemverify.power`, and its tests run them
    mutants: Mapping[str, Subject] = field(default_factory=dict, repr=False)
    stated_in: str | None = None  # the module that states it, if it is not in the catalogue (see `own`)

    @property
    def family(self) -> str:
        """The part of the id before the first slash."""
        return self.id.partition("/")[0]

    @property
    def function(self) -> str:
        """What is called, by the id: "attention-energy", "all", "layer"; for some energies the layer's name."""
        return self.id.split("/")[1]

    @property
    def name(self) -> str:
        """The part of the id after the last slash."""
        return self.id.rpartition("/")[2]


def case_property(
    id_: str,
    *,
    check: Check,
    space: Space,
    needs: Iterable[str] = (),
    function: str | None = None,
    **more: Any,
) -> Property:
    """A property of CEM implementations over the cases of a space; it needs their features, and others.

    Args:
        function: the one that is called, if it is not the layer's own: its energy, or decoding. more: of `Property`.
    """
    features = space.features() | {*needs}
    if function is not None:
        features = features - {space.layer} | {function, *(("start",) if function.endswith("_energy") else ())}
    return Property(id_, check=check, questions=Over(space), needs=features, **more)


# --- statements -----------------------------------------------------------------------------------------

Stated = TypeVar("Stated", bound=Callable[..., Any])

_STATED: dict[str, list[Property]] = {}  # by the name of the module, in the module's order


def statement(make: Callable[[Any], Iterable[Property]]) -> Callable[[Stated], Stated]:
    """Put above a check: enters the properties that `make` makes from it, one for each function that is called.

    `states`, `contract_claim` and the like are built on this one.
    """

    def state(check: Stated) -> Stated:
        _STATED.setdefault(check.__module__, []).extend(make(check))
        return check

    return state


def of_module(module: ModuleType) -> Iterator[Property]:
    """The properties from a module's `properties()`, then those above its checks; above one check, from below."""
    yield from getattr(module, "properties", tuple)()
    yield from _STATED.get(module.__name__, ())


def states(id_: str, *, spaces: Mapping[str, Space], **more: Any) -> Callable[[Check], Check]:
    """Put above a check of cases: what it judges, over the cases of each space.

    Args:
        id_: with "{}" for the keys of the spaces (functions, say), or the whole id of a single one, whose key is "".
        more: as for `case_property`.
    """
    return statement(
        lambda check: [
            case_property(id_.format(key), check=check, space=space, **more) for key, space in spaces.items()
        ]
    )


# --- updates --------------------------------------------------------------------------------------------


# Trivial answers, none of which may pass as an update.
TRIVIAL = frozenset({"identity", "zero", "constant", "random", "shuffled"})


def answer_is_right(function: Function, rival: Rival) -> Check:
    """A check of x^(T) - x^(0), or of a stated energy, against float64 autograd of the scalar energy, step by step.

    Its examples are telling if the rival's answer would have been found wrong.
    """
    claim = "stated energy = energy" if function.is_energy else "update = -eta P grad energy, T times"

    def check(caller: Caller, case: Case) -> Evidence:
        case = function.question(case, caller.dtype)
        start, expected = function.start(case), function.expected(case)
        tolerance = function.tolerance(case, caller.dtype)
        comparison = Comparison(claim, caller.answer(function.name, case) - start, expected - start, tolerance)
        return Evidence.of(comparison, telling=rival.shows(function, case, expected, tolerance))

    return check


def update_property(
    id_: str,
    *,
    space: Space,
    rival: Rival,
    function: str | None = None,
    checked: Callable[[Function, Rival], Check] = answer_is_right,
    **more: Any,
) -> Property:
    """A property whose check is made from a function, the layer's own by default; no trivial layer may pass."""
    check = checked(function_of(function or space.layer), rival)
    premise = rival.premise if function is None else rival.premise.replace("the output", "the energy")
    more = {"premise": premise, "controls": TRIVIAL, "function": function, **more}
    return case_property(id_, check=check, space=space, **more)
