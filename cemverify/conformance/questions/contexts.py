"""The table of contexts in which every function is called, crossed by a covering array.

Many unforeseen faults need two things at once: a frozen state after an evaluation, a window that is
mapped over, a pruned weight at the fourth step. A property that tests one special circumstance only sees the faults
of that circumstance. In the rows of this table, every value of each factor meets every value of each other factor
that it can meet.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.questions.aims import Questions
from cemverify.conformance.questions.cases import Case, Config
from cemverify.conformance.questions.coverage import Row, covering, meetings, rows_of, stride_over
from cemverify.conformance.questions.shrinking import smaller
from cemverify.conformance.questions.spaces import Space, scattered_case

USUAL = "as usual"
_A_RUN = 128  # more seeds in a row than a run uses
_X_ALONE, _EVERYTHING = "x records gradients", "everything records gradients"
READ_ONLY = "read-only"
ANY_OPTIONS = "any step size and temperature"
_NEARLY = 1 + 2.0**-14  # factor for an option, which changes its fifth digit

# How the call is made, with the features that it needs.
MODES: Mapping[str, frozenset[str]] = {
    USUAL: frozenset(),
    "in inference mode": frozenset(),
    "under autocast": frozenset(),
    "mapped": frozenset({"vmap"}),
    _X_ALONE: frozenset({"gradients", "start"}),
    "h records gradients": frozenset({"gradients"}),
    "weights record gradients": frozenset({"gradients"}),
    "one weight records gradients": frozenset({"gradients"}),
    _EVERYTHING: frozenset({"gradients"}),
}
RECORDED = tuple(mode for mode, features in MODES.items() if "gradients" in features)
# If each shape is compiled, nothing records and no torch mode applies: functions are transformed instead.
_OF_FUNCTIONS = (USUAL, "mapped", _X_ALONE, _EVERYTHING)
# Which call of the same function comes before, with other numbers.
BEFORE: Mapping[str, frozenset[str]] = {
    USUAL: frozenset(),
    "after another dtype": frozenset({"dtype:float32"}),
    "after other sizes": frozenset(),
    "after inference mode": frozenset(),
    "after a refused call": frozenset(),
    "after another thread": frozenset({"threads"}),
    "after training": frozenset({"gradients"}),
}
# What comes between an answer and its products, besides another call, when gradients are recorded.
OTHER_OPTIONS, THE_SAME, SECOND_STEP = "between: other options", "between: the same pulled back", "at a second step"
BETWEEN: tuple[str, ...] = (USUAL, OTHER_OPTIONS, THE_SAME, SECOND_STEP)
# How the arrays lie in memory.
ARRAYS: tuple[str, ...] = (USUAL, "in windows", "in one storage", "in Fortran order", READ_ONLY)


@dataclass(frozen=True)
class Context:
    """What surrounds a call: circumstances that must not change its answer."""

    mode: str = USUAL  # one of MODES
    before: str = USUAL  # one of BEFORE
    arrays: str = USUAL  # one of ARRAYS
    between: str = USUAL  # one of BETWEEN

    def __str__(self) -> str:
        unusual = [value for f in fields(self) if (value := getattr(self, f.name)) != USUAL]
        return ", ".join(unusual) or USUAL

    def simpler(self) -> Iterator[Context]:
        """The contexts with one special circumstance fewer."""
        for f in fields(self):
            if getattr(self, f.name) != USUAL:
                yield replace(self, **{f.name: USUAL})


@dataclass(frozen=True, repr=False)
class InContext:
    """A case that is asked in a context."""

    case: Case  # the question
    context: Context = field(default_factory=Context)  # what surrounds the call

    @property
    def sizes(self) -> dict[str, int]:
        """How large the case is."""
        return self.case.sizes

    def describe(self) -> dict[str, Any]:
        """The case and its context as JSON."""
        return {**self.case.describe(), "context": str(self.context)}

    def __repr__(self) -> str:
        return f"{self.case!r} {self.context}"


@dataclass(frozen=True)
class Table(Questions):
    """Cases of a space, in every context."""

    space: Space  # the cases
    long: bool = True  # whether some have long rows
    part: float = 1.0  # the share of the array's rows that is asked

    def rows(self, offer: Any) -> int:
        return math.ceil(self.part * len(self._array(offer)))

    def _array(self, offer: Any) -> tuple[Mapping[str, Any], ...]:
        by_name = self.factors(offer)
        return _crossed(tuple(by_name), tuple(by_name.values()))

    def emptied(self, absent: Iterable[str]) -> str | None:
        return self.space.emptied(absent)

    def scattered(self, offer: Any, seed: int) -> InContext:
        """The question of one row. As many consecutive seeds as there are rows ask all of them.

        If every shape and option is compiled, the rows of a run share a case.
        """
        factors = self.factors(offer)
        rows = self._array(offer)
        # neighbouring rows have values in common, so a few questions take rows from all over the array
        chosen = rows[seed * stride_over(rows) % len(rows)]
        if offer.kind.compiles:
            seed = seed // _A_RUN * 2 + 1  # selects the larger sizes, which have three rows
            chosen = {**chosen, "steps": factors["steps"][:2][-1], "apart": factors["apart"][0]}
        batch, alike, sizes = ROWS[chosen["rows"]]
        how: dict[str, Any] = {"batch": batch, "sizes": sizes, "textures": ("plain",)}
        space = replace(offer.within(self.space), steps=(chosen["steps"],), apart=chosen["apart"], **how)
        case = NUMBERS[chosen["numbers"]](scattered_case(space, seed), np.random.default_rng((seed, 1)))
        if alike > 1:
            which = [0] * alike + list(range(alike, case.h.shape[0]))
            case = case.with_states(lambda states: states[which])
        return InContext(case, Context(*(chosen[f.name] for f in fields(Context))))

    def smaller(self, offer: Any, question: InContext) -> Iterator[InContext]:
        """The same case in a simpler context, then smaller cases."""
        yield from (replace(question, context=simpler) for simpler in question.context.simpler())
        case = question.case
        space = replace(offer.within(self.space), steps=STEPS, apart=case.x is not case.h)
        yield from (replace(question, case=case) for case in smaller(case, space))

    def reach(self) -> Mapping[str, int]:
        longer = {axis: max(sizes) for axis, sizes in _BEYOND.items() if self.long and axis in self.space.reach()}
        return {**self.space.reach(), **longer, "T": max(STEPS)}

    def factors(self, offer: Any) -> dict[str, tuple[Any, ...]]:
        """The table's factors, with those values for which the implementation offers the features."""
        by_name = factors(self.space, offer)
        return {**by_name, "rows": tuple(form for form in by_name["rows"] if self.long or form != _LONG)}


def factors(space: Space, offer: Any) -> dict[str, tuple[Any, ...]]:
    """The factors of the table with their values for which the implementation offers the features."""
    missing = set(offer.absent)
    apart = (True, False) if space.apart and "start" not in missing else (False,)
    modes = _offered(MODES, missing if apart[0] else missing | {"start"})
    return {
        "mode": tuple(mode for mode in modes if mode in _OF_FUNCTIONS or not offer.kind.compiles),
        "before": _offered(BEFORE, missing),
        "arrays": layouts(offer.kind),
        "between": BETWEEN if _EVERYTHING in modes and not offer.kind.compiles else (USUAL,),
        "numbers": tuple(name for name in NUMBERS if name != ANY_OPTIONS or not offer.kind.compiles),
        "rows": tuple(form for form in ROWS if form != _LONG or not offer.kind.compiles),
        "steps": STEPS if "steps" not in missing else STEPS[:1],
        "apart": apart,
    }


def layouts(kind: Any) -> tuple[str, ...]:
    """Those of `ARRAYS` that a kind of array can have: JAX has no views, and only NumPy has read-only arrays."""
    if not kind.editable:
        return (USUAL,)
    return tuple(how for how in ARRAYS if how != READ_ONLY or kind.name == "numpy")


def _offered(values: Mapping[str, frozenset[str]], missing: set[str]) -> tuple[str, ...]:
    return tuple(value for value, needed in values.items() if not needed & missing)


@lru_cache(maxsize=64)
def _crossed(names: tuple[str, ...], values: tuple[tuple[Any, ...], ...]) -> tuple[Mapping[str, Any], ...]:
    """Rows in which all pairs of values meet that can meet.

    x cannot record a gradient alone if it is h; and without recording, nothing can come before the products.
    """
    modes, place = values[names.index("mode")], names.index("mode")

    def allowed(row: Row) -> Row:
        mode = modes[row[place]]
        clashes = {"apart": mode == _X_ALONE, "between": mode not in RECORDED}
        return tuple(0 if clashes.get(name) else value for name, value in zip(names, row, strict=True))

    levels = tuple(map(len, values))
    array = covering(levels)
    rows = [allowed(row) for row in array]
    lost = set().union(*map(meetings, array)) - set().union(*map(meetings, rows))
    # restores lost pairs with a mode that goes with everything
    rows += [
        (*row[:place], modes.index(_EVERYTHING), *row[place + 1 :])
        for row in rows_of(levels, (pair for pair in lost if place not in pair[::2]))
    ]
    return tuple(
        {name: of[value] for name, of, value in zip(names, values, row, strict=True)} for row in dict.fromkeys(rows)
    )


# --- the numbers in the arrays and in the configuration ----------------------------------------------------


def _weights(case: Case, names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Case:
    weights = {k: change(w) if k.split(".")[-1] in names else w for k, w in case.weights.items()}
    return replace(case, weights=weights)


def _sparse(case: Case, rng: np.random.Generator) -> Case:
    """Only one token is not zero, or only about every third."""
    tokens, alone = case.h.shape[1], rng.integers(2) == 0
    positions = np.arange(tokens) == rng.integers(tokens) if alone else rng.integers(3, size=tokens) == 0
    return case.with_states(lambda states: states * torch.from_numpy(positions)[:, None])


def _pruned(case: Case, rng: np.random.Generator) -> Case:
    """Weights after pruning, half of them zero, or as initialised: whole rows and factors of zeros."""
    names = ("W_Q", "W_K", "V", "W")
    if rng.integers(2) == 0:
        return _weights(
            case, (*names, "P_U", "P_V"), lambda w: w * torch.from_numpy(rng.integers(2, size=tuple(w.shape)))
        )

    case = _weights(case, names, lambda w: torch.cat((torch.zeros_like(w[..., :1, :]), w[..., 1:, :]), -2))
    return _weights(case, ("P_U",), torch.zeros_like)


def with_large_d(case: Case, rng: np.random.Generator) -> Case:
    """Entries of d up to 48, of either sign: softplus(d) is d or 0 there, and formulas for it branch at smaller d."""
    return _weights(case, ("P_d",), lambda d: d.sign() * torch.from_numpy(rng.uniform(0, 48, tuple(d.shape))))


def _any_options(case: Case, rng: np.random.Generator) -> Case:
    """Temperatures and step sizes of every magnitude: log-uniform between 1e-4 and 1e4.

    With more than one step, the step size is at most 1: larger steps would overflow.
    """

    def varied(config: Any) -> Any:
        # options that are not drawn are not offered, and eta and tau have their defaults
        if config.step_size != 1.0:
            config = replace(config, step_size=10.0 ** rng.uniform(-4, 4 if config.steps == 1 else 0))
        if isinstance(config, AttentionConfig) and not math.isclose(config.tau, math.sqrt(config.R)):
            config = replace(config, temperature=10.0 ** rng.uniform(-4, 4))
        return config

    if isinstance(case.config, BlockConfig):
        return case.having(attention=varied(case.config.attention), mlp=varied(case.config.mlp))
    return replace(case, config=varied(case.config))


# kinds of each option that take the same weights
_SAME_WEIGHTS: Mapping[str, tuple[str, ...]] = {
    "norm": ("channel", "folded"),
    "position": ("none", "alibi", "rotary"),
    "activation": tuple(ACTIVATIONS),
}
_SAME_FACTORS = ("low-rank", "low-rank-printed")


def nearly(config: Config, absent: Collection[str]) -> Config:
    """Options whose numbers differ from these in the fifth digit, where the implementation offers other values."""
    if isinstance(config, BlockConfig):
        attention, mlp = (nearly(part, absent) for part in (config.attention, config.mlp))  # type: ignore[arg-type]
        return BlockConfig(attention, mlp)  # type: ignore[arg-type]
    changed: dict[str, Any] = {} if "step-size" in absent else {"step_size": config.step_size * _NEARLY}
    if isinstance(config, AttentionConfig) and "temperature" not in absent:
        changed["temperature"] = config.tau * _NEARLY
    return replace(config, **changed)


def otherwise(config: Config, absent: Collection[str]) -> Config:
    """Other options for the same weights, in kinds and in numbers, where the implementation offers them."""
    if isinstance(config, BlockConfig):
        attention, mlp = (otherwise(part, absent) for part in (config.attention, config.mlp))  # type: ignore[arg-type]
        return BlockConfig(attention, mlp)  # type: ignore[arg-type]

    def next_of(group: str, now: str, kinds: Sequence[str]) -> str:
        if now not in kinds:
            return now
        offered = [kind for kind in kinds if kind == "none" or f"{group}:{kind}" not in absent]
        return offered[(offered.index(now) + 1) % len(offered)]

    changed: dict[str, Any] = {
        group: next_of(group, getattr(config, group), kinds)
        for group, kinds in _SAME_WEIGHTS.items()
        if hasattr(config, group)
    }
    kind: Any = next_of("preconditioner", config.preconditioner.kind, _SAME_FACTORS)
    changed["preconditioner"] = replace(config.preconditioner, kind=kind)
    if "step-size" not in absent:
        changed["step_size"] = config.step_size / 2
    if isinstance(config, AttentionConfig):
        if "temperature" not in absent:
            changed["temperature"] = 2 * config.tau
        if changed["position"] == "rotary" and config.R % 2:
            changed["position"] = config.position
    return replace(config, **changed)


NUMBERS: Mapping[str, Callable[[Case, np.random.Generator], Case]] = {
    USUAL: lambda case, _: case,
    "most tokens zero": _sparse,
    "tiny states": lambda case, _: case.with_states(lambda states: 2.0**-530 * states),  # with subnormal squares
    "pruned weights": _pruned,
    "huge pre-activations": lambda case, _: _weights(case, ("W_K", "V"), lambda w: 24.0 * w),
    ANY_OPTIONS: _any_options,
}
STEPS = (1, 2, 3, 5, 9)


# --- the rows of the batch -----------------------------------------------------------------------------------


_LONG = "long"
# beyond the blocks of 16 and 32 in which kernels work, with few features and heads
_BEYOND = {"J": (*range(33, 50), 65, 97), "M": tuple(range(33, 130))}
# the smallest number of rows, how many of the first rows are made equal, and the sizes to draw from
ROWS: Mapping[str, tuple[int, int, Mapping[str, tuple[int, ...]]]] = {
    "any": (1, 1, {}),
    "three and more": (3, 1, {}),
    "two of three alike": (3, 2, {}),
    _LONG: (1, 1, _BEYOND),
}


# From 0.01 to where exp overflows. Activations bend at a few, and level off between 15 and 40 (where shortcuts begin:
# softplus(z) = z, sigmoid(z) = 1). Their exponentials overflow at 88 in float32 and at 709 in float64, or at 1420 if
# it is exp(z / 2).
MAGNITUDES = (
    *(0.01, 0.1, 1.0, 3.0, 5.0, 7.5, 10.0, 13.0, 16.5, 19.0, 20.5, 23.0, 26.0, 29.0, 31.0, 34.0, 37.0, 41.0, 46.0),
    *(60.0, 86.0, 95.0, 140.0, 350.0, 730.0, 1460.0),
)


def with_every_magnitude(case: Case) -> Case:
    """The first token of each row and its negative, scaled so that pre-activations reach each magnitude in turn."""
    x, h = case.x[:, :1], case.h[:, :1]  # (B, 1, D)
    reached = torch.einsum("bjd,md->bjm", x, case.weights["V"]).abs().amax(-1, keepdim=True)  # (B, 1, 1)
    wanted = torch.tensor([m * sign for m in MAGNITUDES for sign in (1.0, -1.0)], dtype=x.dtype)
    scaled = x * wanted[:, None] / torch.where(reached > 0, reached, 1.0)  # (B, J, D)
    return replace(case, x=scaled, h=h.expand_as(scaled).contiguous())


def with_every_d(case: Case) -> Case:
    """Entries of d that go through the magnitudes, at x = 0; the first magnitude and the signs vary."""
    d = case.weights["P_d"]
    start = sum(case.x.shape) + d.numel()
    values = [MAGNITUDES[(start + 7 * i) % len(MAGNITUDES)] for i in range(d.numel())]  # 7 is coprime to their number
    walked = torch.tensor(values, dtype=d.dtype).reshape(d.shape)
    weights = {**case.weights, "P_d": torch.where(d < 0, -walked, walked)}
    return replace(case, x=torch.zeros_like(case.x), weights=weights)
