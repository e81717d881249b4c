"""Spaces: the cases of a property, and two ways to draw from them.

*small*: arrays of small integers, which shrink to readable minimal cases and contain ties and zeros; a Hypothesis
strategy. *scattered*: normally distributed values, some in degenerate textures, from a plain random generator.
Hypothesis tends to revisit what it has seen; scattered cases cover all sizes and combinations of options evenly.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.questions.cases import Case, Config, Layer, scaled, tensor, weight_shapes
from cemverify.conformance.questions.coverage import covering, in_turn, stride_over

Arrays = dict[str, Tensor]
Shapes = Mapping[str, tuple[int, ...]]


# sizes, or limits on sizes: batch B, tokens J, model D, heads K, head R, hidden M, and rank of a preconditioner
Dims = Mapping[str, int]
SMALL: Dims = {"B": 1, "J": 3, "D": 3, "K": 2, "R": 2, "M": 2, "rank": 1}
SCATTERED: Dims = {"B": 4, "J": 9, "D": 13, "K": 12, "R": 6, "M": 8, "rank": 4}
LONGER = {"B": 7, "J": 20, "D": 24, "R": 12, "M": 40, "rank": 8}  # for one axis of each scattered case
_BESIDE: Dims = {"B": 2, "J": 5, "D": 4, "K": 2, "R": 4, "M": 4, "rank": 1}  # beside sizes that a space names
# all sizes for an implementation that compiles each of them: a few of everything, no two axes alike
COMPILED: tuple[Dims, ...] = (
    {"B": 2, "J": 3, "D": 4, "K": 2, "R": 2, "M": 3, "rank": 1},
    {"B": 3, "J": 19, "D": 18, "K": 3, "R": 6, "M": 21, "rank": 2},
)
_COMPILED_SIZES = 2  # how many of a space's own sizes
# numbers of tokens on both sides of the blocks in which kernels work, and widths likewise
LENGTHS = (13, 17, 32, 33, 48, 64, 65, 100, 128, 129, 256, 257, 300)
WIDTHS = {"D": (16, 17, 24, 32, 33, 48, 64, 65, 96, 128, 129), "R": (5, 8, 9, 16, 17, 32, 33), "K": (1, 2, 4, 16)}


_USUAL = ("plain", "repeated-tokens", "zero-queries", "huge", "non-contiguous")
_RARER = ("far", "at-the-memory", "large-states", "small-states")  # only in scattered cases, which are many
# of so many consecutive scattered cases, one has pruned weights, one ends as it begins, and in one every other
# token equals the one before it, whatever the texture
_IN_A_ROW = 5


@dataclass(frozen=True)
class Space:
    """The cases of one property."""

    layer: Layer  # which layer
    options: Mapping[str, Any] = field(default_factory=dict)  # fixed options of its config
    preconditioner: PreconditionerConfig = field(default_factory=PreconditionerConfig)  # the fixed preconditioner
    choices: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # options that vary, with their values
    preconditioners: tuple[PreconditionerConfig, ...] = ()  # if any, the ones to choose from instead
    # steps, step_sizes: the values of T and eta to draw from
    steps: tuple[int, ...] = (1,)
    step_sizes: tuple[float, ...] = (1.0, 0.5, 0.125, 0.3, 2.5)  # 0.3 is not a float32 number
    free_temperature: bool = True  # whether tau varies; if not, it is sqrt(R)
    apart: bool = True  # whether x differs from h
    square: bool = False  # whether R K = D, as in standard attention
    # tokens, batch: the smallest numbers of each
    tokens: int = 1
    batch: int = 1
    # by letter, the sizes to draw from instead of all small ones
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    textures: tuple[str, ...] = _USUAL  # degenerate forms that dense cases may take
    # whether each shape and each configuration is compiled; then cases share a few of them and differ in their
    # numbers
    few: bool = False
    rows: int | None = 4  # how many combinations of options are then asked; None for all pairs
    each_value: bool = False  # whether a few consecutive scattered cases take every value of each option

    def within(self, absent: Iterable[str]) -> Space:
        """The part of this space that applies to an implementation without these features."""
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
        if "head-dim" in missing and space.layer != "mlp":
            space = replace(space, square=True)
        if "steps" in missing:
            space = replace(space, steps=(1,))
        return space

    def compiled(self) -> Space:
        """This space for an implementation for which each shape and each configuration is compiled."""
        every = {axis: max(1, len(named) // _COMPILED_SIZES) for axis, named in self.sizes.items()}
        sizes = {axis: named[:: -every[axis]][:_COMPILED_SIZES][::-1] for axis, named in self.sizes.items()}
        # of the steps, only the first and the middle one: the time to compile a loop is proportional to T
        steps = tuple(dict.fromkeys((self.steps[0], self.steps[len(self.steps) // 2])))
        # sorts last what some spaces leave out, so that the others have the same rows
        choices = {name: tuple(sorted(values, key="relu".__eq__)) for name, values in self.choices.items()}
        return replace(self, few=True, sizes=sizes, steps=steps, choices=choices)

    def emptied(self, absent: Iterable[str]) -> str | None:
        """The name of a choice without any offered value, if there is one."""
        return next((name for name, values in self.within(absent).choices.items() if not values), None)

    def reach(self) -> dict[str, int]:
        """The largest sizes of its cases, by letter: T, J, B, M, K, D, where the layer has them."""
        near = _BESIDE if self.sizes else {**SCATTERED, **LONGER}
        sizes = {"T": max(self.steps)} | {axis: max(self.sizes.get(axis, (near[axis],))) for axis in "JBMKD"}
        if self.square and not self.sizes:
            sizes |= {"K": 3, "D": 3 * max(LONGER["R"], SCATTERED["R"])}
        lacking = {"attention": "M", "mlp": "K"}.get(self.layer, "")
        return {axis: size for axis, size in sizes.items() if axis != lacking}

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


_KINDS_SHARED = (
    PreconditionerConfig(),
    PreconditionerConfig("diagonal"),
    PreconditionerConfig("low-rank"),
    PreconditionerConfig("low-rank-printed"),
)
_KINDS_PER_HEAD = tuple(PreconditionerConfig(p.kind, per_head=True) for p in _KINDS_SHARED[1:])
_OPTIONS: dict[str, tuple[Any, ...]] = {
    "diagonal": ("none", "shared", "per-head"),
    "position": ("none", "alibi", "self-cross", "rotary"),
    "norm": ("none", "scalar", "channel", "folded"),
}


def mixed(layer: Layer, activations: tuple[str, ...] = tuple(ACTIVATIONS), **other: Any) -> Space:
    """A space over all options of a layer in all combinations, because faults often need two options to show."""
    if layer == "mlp":
        choices = {"norm": _OPTIONS["norm"], "activation": activations}
        return Space(layer, choices=choices, preconditioners=_KINDS_SHARED, **other)
    choices = _OPTIONS if layer == "attention" else {**_OPTIONS, "activation": activations}
    return Space(layer, choices=choices, preconditioners=(*_KINDS_SHARED, *_KINDS_PER_HEAD), **other)


@st.composite
def cases(draw: st.DrawFn, space: Space) -> Case:
    """A Hypothesis strategy for small cases of that space: float64, at most 3 tokens except for named sizes."""
    if space.few:
        turns = _turns(space)
        every = len(COMPILED)  # selects the smallest sizes
        config, shapes = _in_few(space, every * draw(st.integers(0, (turns - 1) // every)))
    else:
        config, shapes = _question(_drawn(draw), space, SMALL)
    return _case(config, {name: tensor(draw(_integers(shape))) for name, shape in shapes.items()})


def scattered_case(space: Space, seed: int) -> Case:
    """A case of that space from a random generator; options that vary follow a covering array.

    As many consecutive seeds as the array has rows cover every pair of values of any two options. The number of
    heads, named sizes and textures take turns too, because rules such as ALiBi's slopes may fail at a single one.
    Each axis in turn is longer than the others, because a fault beyond a block of sixteen does not show with short
    axes.
    """
    rng = np.random.default_rng(seed)
    # at random, except for values that take turns
    pick = _Pick(lambda values: values[seed % len(values)], lambda values: values[int(rng.integers(len(values)))])
    space = space if space.few else _on_a_row(space, seed)
    any_texture = space.textures == _USUAL
    if any_texture:
        space = replace(space, textures=_USUAL + _RARER)
    if space.few:
        config, shapes = _in_few(space, seed)
    else:
        config, shapes = _question(pick, space, SCATTERED, _longer(space, seed))
    texture, scale = pick.turn(space.textures), pick.one_of((1.0, 0.25, 3.0))
    arrays = {name: tensor(scaled(name, rng.standard_normal(shape))) for name, shape in shapes.items()}
    case = _case(config, _TEXTURES[texture](_times(arrays, {"W_Q": scale, "V": scale})))
    match seed % _IN_A_ROW if any_texture else None:
        case 0:
            return replace(case, weights=_pruned(case.weights))
        case 2:
            return case.with_states(_closed)
        case 3:
            return case.with_states(_paired)
    return case


def _longer(space: Space, number: int) -> Mapping[str, range]:
    """The sizes of the axis whose turn it is, shifted by one after each round of heads."""
    axes = [axis for axis in LONGER if axis != "R" or space.layer != "mlp"]
    axis = axes[(number + number // SCATTERED["K"]) % len(axes)]
    return {axis: range(1 + SCATTERED[axis], 1 + LONGER[axis])}


def _on_a_row(space: Space, number: int) -> Space:
    """The space with its choices fixed to one row of their covering array.

    The two parts of a block share the kind of preconditioner; each draws its own number of steps.
    """
    rows = _rows(space)
    # neighbouring rows have values in common, so a few questions take rows from all over the array
    number *= stride_over(rows) if space.few else 1
    values = [options[i] for options, i in zip(_varied(space), rows[number % len(rows)], strict=True)]
    fixed = dict(zip(space.choices, values, strict=False))
    space = replace(space, options={**space.options, **fixed}, choices={})
    if _steps_are_in_rows(space):
        space = replace(space, steps=(values[len(fixed)],))
    return replace(space, preconditioners=(values[-1],)) if space.preconditioners else space


def _varied(space: Space) -> list[tuple[Any, ...]]:
    """The values of each option that varies."""
    steps = [space.steps] if _steps_are_in_rows(space) else []
    return [*space.choices.values(), *steps, *([space.preconditioners] if space.preconditioners else [])]


def _steps_are_in_rows(space: Space) -> bool:
    """Whether steps are one of the options that vary.

    The parts of a block draw their own. If each is compiled, and not all pairs are asked, steps take turns
    apart from the rows, so that spaces with other steps have the same rows.
    """
    return space.layer != "block" and not (space.few and space.rows)


def _rows(space: Space) -> tuple[tuple[int, ...], ...]:
    levels = tuple(map(len, _varied(space)))
    return ((),) if not levels else in_turn(levels) if space.each_value and not space.few else covering(levels)


def _in_few(space: Space, number: int) -> tuple[Config, Shapes]:
    """One of a few configurations with its sizes; the same number always gives the same one."""
    number %= _turns(space)
    return _question(_by_number(number), _on_a_row(space, number), COMPILED[number % len(COMPILED)])


def _turns(space: Space) -> int:
    """How many configurations, with their sizes, the cases share."""
    every = len(_rows(space))
    # half of them if they are few, as all are asked elsewhere
    rows = every if space.rows is None else min(every, space.rows, max(every, space.rows) // 2)
    return max(rows, *map(len, space.sizes.values() or (COMPILED,)))


# --- drawing ----------------------------------------------------------------------------------------


class _Pick(NamedTuple):
    """Makes choices."""

    turn: Callable[[Sequence[Any]], Any]  # chooses one of several values that must all take their turn
    one_of: Callable[[Sequence[Any]], Any]  # chooses one of the values; the first is the simplest
    number: int | None = None  # if given, it alone decides


def _drawn(draw: st.DrawFn) -> _Pick:
    """Choices made by Hypothesis."""

    def one_of(values: Sequence[Any]) -> Any:
        return draw(_sampled(tuple(values), tuple(map(type, values))))

    return _Pick(one_of, one_of)


@cache
def _sampled(values: tuple[Any, ...], _types: tuple[type, ...]) -> st.SearchStrategy[Any]:
    """One of the values. Cached: making a strategy takes longer than drawing from it. 1 and 1.0 stay distinct."""
    return st.sampled_from(values)


def _by_number(number: int) -> _Pick:
    """Choices that depend only on a number, each independently: spaces agree in every choice that both leave open."""

    def one_of(values: Sequence[Any]) -> Any:
        if len(values) == 2:  # steps: any four numbers combine both values with both of `COMPILED`
            return values[(number + number // 2) % 2]
        return values[(len(values) // 2 - number) % len(values)]

    return _Pick(lambda values: values[number % len(values)], one_of, number)


def _question(
    pick: _Pick, space: Space, limits: Dims, longer: Mapping[str, range] = MappingProxyType({})
) -> tuple[Config, Shapes]:
    """A configuration, and the shapes of the arrays that go with it."""
    limits, longer = (_BESIDE, {}) if space.sizes else (limits, longer)
    options = {**space.options} | {name: pick.one_of(values) for name, values in space.choices.items()}
    sizes: dict[str, int] = {}
    for name, limit in limits.items():
        least = {"B": space.batch, "J": space.tokens}.get(name, 1)
        named = space.sizes.get(name)
        most = max(least, limit)
        values = named or longer.get(name) or range(most if limits in COMPILED else least, most + 1)
        sizes[name] = pick.turn(values) if named or name == "K" else pick.one_of(values)
    if space.square:
        if "K" not in space.sizes:
            sizes["K"] = min(sizes["K"], 3, sizes["D"] if "D" in space.sizes else 3)
        if "D" in space.sizes:
            sizes["R"] = max(1, sizes["D"] // sizes["K"])
    if options.get("position") == "rotary":
        sizes["R"] += sizes["R"] % 2
    if space.square:
        sizes["D"] = sizes["K"] * sizes["R"]
    config = _config(pick, space, options, sizes)
    states = (sizes["B"], sizes["J"], sizes["D"])
    return config, {**({"x": states} if space.apart else {}), "h": states, **weight_shapes(config)}


def _config(pick: _Pick, space: Space, options: dict[str, Any], sizes: Dims) -> Config:
    kinds = space.preconditioners or (space.preconditioner,)
    shared = _shared(pick, space, options)
    preconditioner = _of_rank(pick.one_of(kinds), sizes["rank"])
    if space.layer == "mlp":
        return MLPConfig(sizes["D"], sizes["M"], preconditioner=preconditioner, **shared, **options)
    activation = {"activation": options.pop("activation")} if "activation" in options else {}
    # tau is always given, so that config.temperature is a number
    tau = pick.one_of((1.0, 2.0, 0.5, 8.0, 0.3, 12.0)) if space.free_temperature else math.sqrt(sizes["R"])
    attention = AttentionConfig(
        sizes["D"],
        sizes["K"],
        head_dim=sizes["R"],
        temperature=tau,
        preconditioner=preconditioner,
        **shared,
        **options,
    )
    if space.layer == "attention":
        return attention
    own = replace(_of_rank(pick.one_of(kinds), sizes["rank"]), per_head=False)
    # T, eta and the norm's epsilon are the MLP's own: a faulty block may read one part's in the other
    pick = pick if pick.number is None else _by_number(pick.number + 1)
    mlp = MLPConfig(
        sizes["D"], sizes["M"], preconditioner=own, norm=attention.norm, **activation, **_shared(pick, space, options)
    )
    return BlockConfig(attention, mlp)


def _shared(pick: _Pick, space: Space, options: Mapping[str, Any]) -> dict[str, Any]:
    """Draws the options that attention and the MLP have in common."""
    drawn: dict[str, Any] = {"steps": pick.one_of(space.steps), "step_size": pick.one_of(space.step_sizes)}
    if options.get("norm", "none") != "none":
        drawn["norm_eps"] = pick.one_of((1e-5, 1e-2, 1e-6, 1e-12))
    return drawn


def _of_rank(config: PreconditionerConfig, rank: int) -> PreconditionerConfig:
    return replace(config, rank=rank) if config.kind.startswith("low-rank") else config


def _case(config: Config, arrays: Arrays) -> Case:
    h = arrays.pop("h")
    return Case(config, arrays.pop("x", h), h, arrays)


@cache
def _integers(shape: tuple[int, ...]) -> st.SearchStrategy[Any]:
    # fill=nothing(): every entry is drawn; otherwise whole arrays would share one value
    return hnp.arrays(np.int8, shape, elements=st.integers(-2, 2), fill=st.nothing())


def _map(arrays: Arrays, names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Arrays:
    return {k: change(v) if k.split(".")[-1] in names else v for k, v in arrays.items()}


def _times(arrays: Arrays, factors: Mapping[str, float]) -> Arrays:
    return {k: factors[k.split(".")[-1]] * v if k.split(".")[-1] in factors else v for k, v in arrays.items()}


def _gentle(arrays: Arrays) -> Arrays:
    """Logits and activations of order one at any scale: in bfloat16, or after many steps, larger ones show
    nothing."""
    return _map(arrays, ("W_Q", "V"), lambda w: w * math.sqrt(w[..., 0].numel()) / w.norm())


def _loud_end(arrays: Arrays) -> Arrays:
    """A last token that is much larger than the others; these read evenly if x is an array of its own.

    If it is also the last state, its logits grow with its square, and in bfloat16 they soon say nothing.
    """
    end = torch.ones(arrays["h"].shape[1], dtype=torch.float64)
    end[-1] = 100.0 if "x" in arrays else 3.0
    arrays = _map(_gentle(arrays), ("h",), lambda h: h * end[:, None])
    return _map(arrays, ("x",), torch.zeros_like)


def _far_keys(arrays: Arrays) -> Arrays:
    """Attention in which every token reads the first four, wherever it stands: the rest of the memory is zero.

    Their logits are alike, and so large that no zero is read with them. Keys only have features in the last plane,
    whose angle grows most slowly: an error that all planes' angles share is nearly all of that plane's own angle.
    """
    arrays = _gentle(arrays)
    W_Q, W_K, h = arrays["W_Q"], arrays["W_K"].clone(), arrays["h"]
    R, read = W_K.shape[1], torch.arange(h.shape[1]) < _READ
    plane = torch.arange(R) % max(1, R // 2) == max(1, R // 2) - 1
    W_K[:, ~plane] = 0.0
    x = arrays["x"][:1, :1] if "x" in arrays else h[:1, -1:]
    towards = torch.einsum("krd,kre,e->d", W_K, W_Q, x[0, 0]) / math.sqrt(R)  # maps h to logits
    length = (towards @ towards).clamp(min=1e-9)
    aside = h - (h @ towards)[..., None] * towards / length
    # what sets the four apart is as large as the source of their logits, so rounding one does not hide the other
    h = _LOGIT * (aside / length.sqrt() + towards / length) * read[:, None]
    apart = {"x": x.expand_as(h).contiguous()} if "x" in arrays else {}
    return {**arrays, **apart, "W_K": W_K, "h": h}


_READ, _LOGIT = 4, 48.0


def _pruned(weights: Mapping[str, Tensor]) -> Arrays:
    """Weights with zeros in their first column and last row, as after pruning or zero initialisation.

    No weight vanishes entirely: an axis of one entry keeps it.
    """

    def prune(weight: Tensor) -> Tensor:
        weight = weight.clone()
        if weight.shape[-1] > 1:
            weight[..., 0] = 0.0
        if weight.dim() > 1 and weight.shape[0] > 1:
            weight[-1] = 0.0
        return weight

    return {name: prune(weight) for name, weight in weights.items()}


def _closed(states: Tensor) -> Tensor:
    """The last row is the first one, and each row's last token is its first; what lies between differs from both."""
    states = states.clone()
    states[:, -1] = states[:, 0]
    states[-1] = states[0]
    return states


def _paired(states: Tensor) -> Tensor:
    """Every other token repeats the one before it: two neighbours are equal, and the next two are others."""
    states = states.clone()
    later = states[:, 1::2]
    later.copy_(states[:, ::2][:, : later.shape[1]])
    return states


_TEXTURES: Mapping[str, Callable[[Arrays], Arrays]] = {
    "plain": lambda arrays: arrays,
    "repeated-tokens": lambda arrays: _map(arrays, ("h",), lambda h: h[:, :1].expand_as(h).contiguous()),
    "zero-queries": lambda arrays: _map(arrays, ("W_Q", "W"), torch.zeros_like),
    # logits in the thousands, activations deep in their tails, softplus far from zero
    "huge": lambda arrays: _times(arrays, {"W_K": 1024.0, "V": 12.0, "P_d": 12.0}),
    "gentle": _gentle,
    # nearly all tokens are zero; of every 37 only the last two are not, so a layer that skips zeros must find those
    "sparse": lambda arrays: _map(
        _gentle(arrays), ("x", "h"), lambda x: x * (torch.arange(x.shape[1]).flip(0) % 37 < 2)[:, None]
    ),
    "loud-end": _loud_end,
    "far-keys": _far_keys,
    "signs": lambda arrays: _map(_gentle(arrays), ("x", "h"), lambda x: torch.where(x < 0, -1.0, 1.0).double()),
    "positive": lambda arrays: {name: array.abs() for name, array in arrays.items()},
    # states in the hundreds, with weights so small that logits and activations stay the same
    "far": lambda arrays: _times(arrays, {"x": 256.0, "h": 256.0, **dict.fromkeys(("W_K", "W_Q", "V"), 2.0**-8)}),
    # x has the values of h, in an array of its own
    "at-the-memory": lambda arrays: {**arrays, "x": arrays["h"].clone()} if "x" in arrays else arrays,
    "large-states": lambda arrays: _times(arrays, {"x": 32.0, "h": 32.0}),
    "small-states": lambda arrays: _times(arrays, {"x": 2.0**-12, "h": 2.0**-12}),
    "non-contiguous": lambda arrays: {k: v.movedim(0, -1).contiguous().movedim(-1, 0) for k, v in arrays.items()},
}


# step sizes for many steps, and sizes: larger steps let roundoff grow from one to the next
GENTLE = (2.0**-5, 2.0**-7)
FEW_OF_ALL = {"B": (1, 2), "J": (2, 3), "D": (4,), "K": (2,), "R": (2,), "M": (3, 4)}
