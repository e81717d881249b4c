"""Spaces: the cases of a property, and three ways of drawing from them.

*small*: arrays of small integers, which shrink to readable minimal cases and bring ties and zeros. *dense*: normals
drawn from a seed in a box and sliced, so that dimensions shrink without redrawing the values; they also wear
degenerate textures. Both are Hypothesis strategies, and never joined: joined ones shrink badly. Hypothesis
likes to come back to what it has seen, so there is a third, *scattered*: the same drawing by a plain random
generator, which spreads evenly over every size and combination of options.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Literal, Protocol, TypeVar

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.cases import Case, Config, Layer, scaled, tensor, weight_shapes
from cemverify.conformance.coverage import covering

Source = Literal["small", "dense"]
Arrays = dict[str, Tensor]
T = TypeVar("T")


@dataclass(frozen=True)
class Dims:
    """Sizes, or limits to them.

    Attributes:
        B, J, D, K, R, M: batch, tokens, model, heads, head, hidden. rank: of a low-rank preconditioner.
    """

    B: int
    J: int
    D: int
    K: int
    R: int
    M: int
    rank: int


SMALL = Dims(B=1, J=3, D=3, K=2, R=2, M=2, rank=1)
DENSE = Dims(B=2, J=5, D=6, K=3, R=4, M=6, rank=2)
SCATTERED = Dims(B=3, J=9, D=8, K=7, R=4, M=8, rank=3)
LONGER = {"B": 7, "J": 20, "D": 24, "R": 12, "M": 40, "rank": 8}  # one axis of each scattered case
_BOX = 12  # no axis of a dense case is longer: the largest D is K R


@dataclass(frozen=True)
class Space:
    """The cases of one property.

    Attributes:
        layer: which layer. options: fixed options of its config. choices: options that vary, and over what.
        preconditioner: the fixed one. preconditioners: those it varies over instead, if any.
        steps, step_sizes: what T and eta are drawn from.
        free_temperature: whether tau varies; else sqrt(R).
        apart: whether x differs from h. square: whether R K = D, as standard attention has it.
        tokens, batch: the fewest of each.
        textures: degenerate forms that dense cases also take.
    """

    layer: Layer
    options: Mapping[str, Any] = field(default_factory=dict)
    preconditioner: PreconditionerConfig = field(default_factory=PreconditionerConfig)
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    preconditioners: tuple[PreconditionerConfig, ...] = ()
    steps: tuple[int, ...] = (1,)
    step_sizes: tuple[float, ...] = (1.0, 0.5, 0.125, 0.3, 3.0)  # 0.3 is none of float32's numbers
    free_temperature: bool = True
    apart: bool = True
    square: bool = False
    tokens: int = 1
    batch: int = 1
    textures: tuple[str, ...] = (
        *("plain", "repeated-tokens", "zero-queries", "huge", "non-contiguous"),
        *("large-states", "small-states"),
    )

    def within(self, absent: Iterable[str]) -> Space:
        """The part of this space that an implementation without these features can be asked about."""
        missing = set(absent)
        kinds = tuple(p for p in self.preconditioners if not _preconditioner_features(p) & missing)
        choices = {
            name: tuple(v for v in values if f"{name}:{v}" not in missing) for name, values in self.choices.items()
        }
        space = replace(self, choices=choices, preconditioners=kinds)
        if "start" in missing:
            space = replace(space, apart=False)
        if "temperature" in missing:
            space = replace(space, free_temperature=False)
        if "step-size" in missing:
            space = replace(space, step_sizes=(1.0,))
        if "head-dim" in missing:
            space = replace(space, square=True)
        if "steps" in missing:
            space = replace(space, steps=(1,))
        return space

    def emptied(self, absent: Iterable[str]) -> str | None:
        """The name of a choice of which nothing is offered, if there is one."""
        return next((name for name, values in self.within(absent).choices.items() if not values), None)

    def features(self) -> frozenset[str]:
        """The features that every case of this space uses."""
        named: set[str] = {self.layer, *_preconditioner_features(self.preconditioner)}
        for group in ("diagonal", "position", "norm", "activation"):
            value = self.options.get(group, "none")
            if value != "none":
                named.add(f"{group}:{value}")
        if self.layer != "attention" and "activation" not in {*self.options, *self.choices}:
            named.add("activation:silu")
        if min(self.steps) > 1:
            named.add("steps")
        return frozenset(named)


def _preconditioner_features(config: PreconditionerConfig) -> set[str]:
    kind = set() if config.kind == "identity" else {f"preconditioner:{config.kind}"}
    return kind | ({"preconditioner:per-head"} if config.per_head else set())


def cases(space: Space, source: Source) -> st.SearchStrategy[Case]:
    """Cases of that space for Hypothesis: float64, at most 5 tokens and 12 dimensions."""
    return _hypothesis_cases(space, source)


@st.composite
def _hypothesis_cases(draw: st.DrawFn, space: Space, source: Source) -> Case:
    pick = _Drawn(draw)
    config, batch, tokens = _question(pick, space, SMALL if source == "small" else DENSE)
    shapes = _array_shapes(space, config, batch, tokens)
    if source == "small":
        return _case(config, {name: tensor(draw(_integers(shape))) for name, shape in shapes.items()})
    seed = draw(st.integers(0, 2**32 - 1))

    def boxed(name: str, shape: tuple[int, ...]) -> Any:
        # each array from its own stream, drawn in a box and sliced: a smaller shape keeps its values
        box = np.random.default_rng((seed, zlib.crc32(name.encode()))).standard_normal((_BOX,) * len(shape))
        return box[tuple(slice(n) for n in shape)]

    return _dressed(pick, space, config, shapes, boxed)


def scattered_case(space: Space, seed: int) -> Case:
    """A case of that space drawn by a random generator; options that vary follow a covering array.

    As many seeds in a row as the array has rows bring every two values of any two options together. The number of
    heads takes its turn too: rules for them, such as ALiBi's slopes, may go wrong at six or seven alone. So do the
    other sizes in being longer than the rest, since what goes wrong beyond a block of sixteen shows at no short one,
    and the textures, three cases in a row each.
    """
    rng = np.random.default_rng(seed)
    pick = _Random(rng)
    space = _on_a_row(space, seed)
    axes = [axis for axis in LONGER if axis != "R" or space.layer != "mlp"]
    axis = axes[seed % len(axes)]
    space = replace(space, textures=(space.textures[seed // 3 % len(space.textures)],))
    sizes = {"K": 1 + seed % SCATTERED.K, axis: pick.size(1 + getattr(SCATTERED, axis), LONGER[axis])}
    config, batch, tokens = _question(pick, space, SCATTERED, sizes)
    shapes = _array_shapes(space, config, batch, tokens)
    return _dressed(pick, space, config, shapes, lambda _, shape: rng.standard_normal(shape))


def _on_a_row(space: Space, number: int) -> Space:
    """The space with its choices fixed to one row of their covering array; a block's two parts share the kind."""
    kinds = space.preconditioners
    varied = [*space.choices.values(), *([kinds] if kinds else []), space.steps]
    rows = covering(tuple(len(values) for values in varied))
    values = [options[i] for options, i in zip(varied, rows[number % len(rows)], strict=True)]
    fixed = dict(zip(space.choices, values, strict=False))
    space = replace(space, options={**space.options, **fixed}, choices={}, steps=(values[-1],))
    return replace(space, preconditioners=(values[-2],)) if kinds else space


# --- drawing ----------------------------------------------------------------------------------------


class _Pick(Protocol):
    """Makes choices."""

    def size(self, least: int, limit: int) -> int:
        """A size from `least` to `limit`."""
        ...

    def one_of(self, values: Sequence[T]) -> T:
        """One of the values, the first of which is the simplest."""
        ...


@dataclass(frozen=True)
class _Drawn:
    """Choices by Hypothesis."""

    draw: st.DrawFn

    def size(self, least: int, limit: int) -> int:
        return self.draw(st.integers(least, max(least, limit)))

    def one_of(self, values: Sequence[T]) -> T:
        return self.draw(st.sampled_from(values))


@dataclass(frozen=True)
class _Random:
    """Choices by a generator."""

    rng: np.random.Generator

    def size(self, least: int, limit: int) -> int:
        return int(self.rng.integers(least, max(least, limit) + 1))

    def one_of(self, values: Sequence[T]) -> T:
        return values[int(self.rng.integers(len(values)))]


def _question(
    pick: _Pick, space: Space, limits: Dims, given: Mapping[str, int] = MappingProxyType({})
) -> tuple[Config, int, int]:
    """A configuration, the batch and the number of tokens; sizes that are given are not drawn."""
    options = dict(space.options) | {name: pick.one_of(values) for name, values in space.choices.items()}
    sizes = {}
    for f in fields(Dims):
        least = {"B": space.batch, "J": space.tokens}.get(f.name, 1)
        sizes[f.name] = pick.size(least, getattr(limits, f.name))
    dims = Dims(**{**sizes, **given})
    if options.get("position") == "rotary":
        dims = replace(dims, R=dims.R + dims.R % 2)
    if space.square:
        dims = replace(dims, K=min(dims.K, 3))
        dims = replace(dims, D=dims.K * dims.R)
    return _config(pick, space, options, dims), dims.B, dims.J


def _config(pick: _Pick, space: Space, options: dict[str, Any], dims: Dims) -> Config:
    kinds = space.preconditioners or (space.preconditioner,)
    shared = _descent(pick, space, options.get("norm", "none"))
    preconditioner = _of_rank(pick.one_of(kinds), dims.rank)
    if space.layer == "mlp":
        return MLPConfig(dims.D, dims.M, preconditioner=preconditioner, **shared, **options)
    activation = {"activation": options.pop("activation")} if "activation" in options else {}
    # tau is always given, so that config.temperature is a number
    tau = pick.one_of((1.0, 2.0, 0.5, 8.0, 0.7)) if space.free_temperature else math.sqrt(dims.R)
    attention = AttentionConfig(
        dims.D,
        dims.K,
        head_dim=dims.R,
        temperature=tau,
        preconditioner=preconditioner,
        **shared,
        **options,
    )
    if space.layer == "attention":
        return attention
    own = replace(_of_rank(pick.one_of(kinds), dims.rank), per_head=False)
    other = _descent(pick, space, attention.norm)  # of its own, or one half could read the other's
    return BlockConfig(
        attention, MLPConfig(dims.D, dims.M, preconditioner=own, norm=attention.norm, **activation, **other)
    )


def _descent(pick: _Pick, space: Space, norm: str) -> dict[str, Any]:
    """How one layer goes down: T, eta and the norm's epsilon, if it has one."""
    options: dict[str, Any] = {"steps": pick.one_of(space.steps), "step_size": pick.one_of(space.step_sizes)}
    return options if norm == "none" else {**options, "norm_eps": pick.one_of((1e-5, 1e-2, 1e-8))}


def _of_rank(config: PreconditionerConfig, rank: int) -> PreconditionerConfig:
    return replace(config, rank=rank) if config.kind.startswith("low-rank") else config


def _array_shapes(space: Space, config: Config, batch: int, tokens: int) -> dict[str, tuple[int, ...]]:
    dim = config.attention.dim if isinstance(config, BlockConfig) else config.dim
    states = (batch, tokens, dim)
    apart = {"x": states} if space.apart else {}
    return {**apart, "h": states, **weight_shapes(config)}


def _case(config: Config, arrays: Arrays) -> Case:
    h = arrays.pop("h")
    return Case(config, arrays.pop("x", h), h, arrays)


def _integers(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    # fill=nothing(): every entry is drawn, or whole arrays would share one value
    return hnp.arrays(np.int8, shape, elements=st.integers(-2, 2), fill=st.nothing())


def _dressed(
    pick: _Pick,
    space: Space,
    config: Config,
    shapes: Mapping[str, tuple[int, ...]],
    normal: Callable[[str, tuple[int, ...]], Any],
) -> Case:
    """Normals made into weights, at one of several scales, in one of the space's textures."""
    texture, scale = pick.one_of(space.textures), pick.one_of((1.0, 0.25, 3.0))
    arrays = {name: tensor(scaled(name, normal(name, shape))) for name, shape in shapes.items()}
    arrays = _map(arrays, ("W_Q", "V"), lambda w: scale * w)
    return _case(config, _TEXTURES[texture](arrays))


def _map(arrays: Arrays, names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Arrays:
    return {k: change(v) if k.split(".")[-1] in names else v for k, v in arrays.items()}


def _huge(arrays: Arrays) -> Arrays:
    """Logits in the thousands, activations deep in their tails, softplus far from zero."""
    arrays = _map(arrays, ("W_K",), lambda w: 1024.0 * w)
    return _map(arrays, ("V", "P_d"), lambda w: 12.0 * w)


_TEXTURES: Mapping[str, Callable[[Arrays], Arrays]] = {
    "plain": lambda arrays: arrays,
    "repeated-tokens": lambda arrays: _map(arrays, ("h",), lambda h: h[:, :1].expand_as(h).contiguous()),
    "zero-queries": lambda arrays: _map(arrays, ("W_Q", "W"), torch.zeros_like),
    "huge": _huge,
    "large-states": lambda arrays: _map(arrays, ("x", "h"), lambda state: 32.0 * state),
    "small-states": lambda arrays: _map(arrays, ("x", "h"), lambda state: 2.0**-12 * state),
    "non-contiguous": lambda arrays: {k: v.movedim(0, -1).contiguous().movedim(-1, 0) for k, v in arrays.items()},
}
