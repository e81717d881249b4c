"""Cases: what a property is asked about, and the Hypothesis strategies that draw them.

Two strategies, never joined (joined ones shrink badly): *small*, arrays of integers that shrink to readable
minimal cases and bring ties and zeros; and *dense*, normals drawn from a seed at the largest shape and then
sliced, so that dimensions shrink without redrawing the values. Dense cases also wear degenerate textures.
"""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig

Layer = Literal["attention", "mlp", "block"]
Config = AttentionConfig | MLPConfig | BlockConfig
Source = Literal["small", "dense"]
Arrays = dict[str, Tensor]
Values = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, repr=False)
class Case:
    """One question to an implementation.

    Attributes:
        config: which layer, with which options.
        x: where the descent starts, (B, J, D). h: the memory, (B, J, D).
        weights: see `cemverify.conformance.contract.implementation`.
    """

    config: Config
    x: Tensor
    h: Tensor
    weights: Mapping[str, Tensor]

    @property
    def layer(self) -> Layer:
        """Which layer is asked."""
        if isinstance(self.config, AttentionConfig):
            return "attention"
        return "mlp" if isinstance(self.config, MLPConfig) else "block"

    @property
    def attention(self) -> AttentionConfig:
        """The configuration of an attention case."""
        assert isinstance(self.config, AttentionConfig)
        return self.config

    @property
    def mlp(self) -> MLPConfig:
        """The configuration of an MLP case."""
        assert isinstance(self.config, MLPConfig)
        return self.config

    @property
    def layer_config(self) -> AttentionConfig | MLPConfig:
        """The configuration of a case of either."""
        assert isinstance(self.config, AttentionConfig | MLPConfig)
        return self.config

    def to(self, dtype: torch.dtype) -> Case:
        """The same case with every array rounded to that dtype."""
        weights = {name: array.to(dtype) for name, array in self.weights.items()}
        return replace(self, x=self.x.to(dtype), h=self.h.to(dtype), weights=weights)

    def having(self, **options: Any) -> Case:
        """The same case with other options."""
        return replace(self, config=replace(self.config, **options))

    def part(self, layer: Literal["attention", "mlp"]) -> Case:
        """The attention or the MLP of a block case, with its weights."""
        assert isinstance(self.config, BlockConfig)
        config = getattr(self.config, layer)
        prefix = f"{layer}."
        weights = {name.removeprefix(prefix): w for name, w in self.weights.items() if name.startswith(prefix)}
        return Case(config, self.x, self.h, weights)

    def __repr__(self) -> str:
        return f"Case({self.layer}, x {tuple(self.x.shape)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """Hypothesis prints a failing argument, and would print every array of a dataclass."""
        printer.text(repr(self))

    def describe(self) -> dict[str, Any]:
        """The case as JSON: options that differ from their defaults, and every array."""
        return {
            "layer": self.layer,
            "tokens": self.x.shape[1],
            "dim": self.x.shape[2],
            "config": non_defaults(self.config),
            "x": self.x.double().tolist(),
            "h": self.h.double().tolist(),
            "weights": {name: array.double().tolist() for name, array in self.weights.items()},
        }


def non_defaults(config: Any) -> dict[str, Any]:
    """The options of a config that differ from their defaults, and those that have none."""
    shown = {}
    for f in fields(config):
        value = getattr(config, f.name)
        default = f.default_factory() if callable(f.default_factory) else f.default
        if value != default:
            shown[f.name] = non_defaults(value) if is_dataclass(value) else value
    return shown


def unchecked(config: Config, **options: Any) -> Config:
    """A config with options that its own constructor would refuse, to see whether an implementation does."""
    changed = copy.copy(config)
    for name, value in options.items():
        object.__setattr__(changed, name, value)
    return changed


@dataclass(frozen=True)
class Space:
    """The cases of one property.

    Attributes:
        layer: which layer. options: fixed options of its config. preconditioner: of both halves of a block.
        steps, step_sizes: what T and eta are drawn from.
        free_temperature: whether tau varies; else sqrt(R).
        apart: whether x differs from h. square: whether R K = D, as standard attention has it.
        tokens, batch: the fewest of each.
        textures: degenerate forms that dense cases also take.
    """

    layer: Layer
    options: Mapping[str, Any] = field(default_factory=dict)
    preconditioner: PreconditionerConfig = field(default_factory=PreconditionerConfig)
    steps: tuple[int, ...] = (1,)
    step_sizes: tuple[float, ...] = (1.0, 0.5, 0.125)
    free_temperature: bool = True
    apart: bool = True
    square: bool = False
    tokens: int = 1
    batch: int = 1
    textures: tuple[str, ...] = ("plain", "repeated-tokens", "zero-queries", "huge-logits", "non-contiguous")

    def within(self, absent: Iterable[str]) -> Space:
        """The part of this space that an implementation without these features can be asked about."""
        missing = set(absent)
        space = self
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


@dataclass(frozen=True)
class _Dims:
    B: int
    J: int
    D: int
    K: int
    R: int
    M: int
    rank: int


_LARGEST = _Dims(B=2, J=5, D=6, K=3, R=4, M=6, rank=2)
_BOX = 12  # no axis is longer: the largest D is K R


@st.composite
def cases(draw: st.DrawFn, space: Space, source: Source) -> Case:
    """Cases of that space: float64, at most 5 tokens and 12 dimensions."""
    dims = draw(_dims(space, small=source == "small"))
    config = draw(_configs(space, dims))
    shapes = weight_shapes(config)
    tokens = (dims.B, dims.J, dims.D)
    wanted = {"x": tokens, "h": tokens, **shapes} if space.apart else {"h": tokens, **shapes}
    arrays = draw(_integers(wanted) if source == "small" else _normals(wanted, space))
    h = arrays.pop("h")
    return Case(config, arrays.pop("x", h), h, arrays)


def dense_case(config: Config, batch: int, tokens: int, seed: int) -> Case:
    """A well-conditioned case of any size: standard normal states, W ~ N(0, 1/D), drawn from a seed."""
    rng = np.random.default_rng(seed)
    dim = config.attention.dim if isinstance(config, BlockConfig) else config.dim
    weights = {
        name: _tensor(_scaled(name, rng.standard_normal(shape))) for name, shape in weight_shapes(config).items()
    }
    x, h = (_tensor(rng.standard_normal((batch, tokens, dim))) for _ in range(2))
    return Case(config, x, h, weights)


def weight_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the weights that a configuration uses."""
    if isinstance(config, BlockConfig):
        assert isinstance(config.attention, AttentionConfig)
        assert isinstance(config.mlp, MLPConfig)
        parts = {"attention": weight_shapes(config.attention), "mlp": weight_shapes(config.mlp)}
        return {f"{part}.{name}": shape for part, shapes in parts.items() for name, shape in shapes.items()}
    D = config.dim
    shapes: dict[str, tuple[int, ...]] = {}
    lead: tuple[int, ...] = ()
    if isinstance(config, AttentionConfig):
        K, R = config.heads, config.R
        shapes |= {"W_Q": (K, R, D), "W_K": (K, R, D)}
        if config.diagonal != "none":
            shapes["diagonal"] = (K, D) if config.diagonal == "per-head" else (D,)
        if config.position == "self-cross":
            shapes |= {"to_self": (K,), "to_others": (K,)}
        lead = (K,) if config.preconditioner.per_head else ()
    else:
        shapes |= {"V": (config.hidden, D), "W": (config.hidden, D)}
    if config.preconditioner.kind != "identity":
        shapes["P_d"] = (*lead, D)
    if config.preconditioner.kind.startswith("low-rank"):
        shapes |= dict.fromkeys(("P_U", "P_V"), (*lead, D, config.preconditioner.rank))
    if config.norm != "none":
        shapes["gain"] = (1,) if config.norm == "scalar" else (D,)
    return shapes


# --- drawing ------------------------------------------------------------------------------------


@st.composite
def _dims(draw: st.DrawFn, space: Space, *, small: bool) -> _Dims:
    largest = 2 if small else 3
    K = draw(st.integers(1, largest if small else _LARGEST.K))
    R = draw(st.integers(1, largest if small else _LARGEST.R))
    if space.options.get("position") == "rotary":
        R += R % 2
    D = K * R if space.square else draw(st.integers(1, 3 if small else 6))
    return _Dims(
        B=draw(st.integers(space.batch, max(space.batch, 1 if small else 2))),
        J=draw(st.integers(space.tokens, max(space.tokens, 3 if small else _LARGEST.J))),
        D=D,
        K=K,
        R=R,
        M=draw(st.integers(1, 2 if small else _LARGEST.M)),
        rank=draw(st.integers(1, 1 if small else _LARGEST.rank)),
    )


@st.composite
def _configs(draw: st.DrawFn, space: Space, dims: _Dims) -> Config:
    preconditioner = replace(space.preconditioner, rank=dims.rank)
    steps = draw(st.sampled_from(space.steps))
    step_size = draw(st.sampled_from(space.step_sizes))
    if space.layer == "mlp":
        return MLPConfig(
            dims.D, dims.M, preconditioner=preconditioner, steps=steps, step_size=step_size, **space.options
        )
    # tau is always given, so that config.temperature is a number
    tau = draw(st.sampled_from((1.0, 2.0, 0.5, 8.0))) if space.free_temperature else math.sqrt(dims.R)
    attention = AttentionConfig(
        dims.D,
        dims.K,
        head_dim=dims.R,
        temperature=tau,
        preconditioner=preconditioner,
        steps=steps,
        step_size=step_size,
        **space.options,
    )
    if space.layer == "attention":
        return attention
    mlp = MLPConfig(dims.D, dims.M, steps=steps, step_size=step_size, norm=attention.norm)
    return BlockConfig(attention, mlp)


@st.composite
def _integers(draw: st.DrawFn, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Tensor]:
    arrays = {}
    for name, shape in shapes.items():
        # fill=nothing(): every entry is drawn, or whole arrays would share one value
        drawn = draw(hnp.arrays(np.int8, shape, elements=st.integers(-2, 2), fill=st.nothing()))
        arrays[name] = _tensor(drawn.astype(np.float64))
    return arrays


@st.composite
def _normals(draw: st.DrawFn, shapes: Mapping[str, tuple[int, ...]], space: Space) -> dict[str, Tensor]:
    texture = draw(st.sampled_from(space.textures))
    scale = draw(st.sampled_from((1.0, 0.25, 3.0)))
    seed = draw(st.integers(0, 2**32 - 1))
    arrays = {}
    for name, shape in shapes.items():
        # drawn in a box and sliced, each array from its own stream: a smaller shape keeps its values
        box = np.random.default_rng((seed, zlib.crc32(name.encode()))).standard_normal((_BOX,) * len(shape))
        values = _scaled(name, box[tuple(slice(n) for n in shape)])
        arrays[name] = _tensor(values * scale if name.split(".")[-1] in ("W_Q", "V") else values)
    return _TEXTURES[texture](arrays)


def _scaled(name: str, values: Values) -> Values:
    """Standard normals made into weights of order one in what they do, or left alone."""
    match name.split(".")[-1]:
        case "W_Q" | "W_K" | "V" | "W":
            return values / math.sqrt(values.shape[-1])
        case "gain":
            return np.exp(values / 2)  # positive, as a trained gain is
        case "P_U" | "P_V":
            return values / math.sqrt(values.shape[-2])
        case _:
            return values


def _tensor(values: Values) -> Tensor:
    return torch.from_numpy(np.array(values, dtype=np.float64, order="C"))


def _map(arrays: Arrays, names: tuple[str, ...], change: Callable[[Tensor], Tensor]) -> Arrays:
    return {k: change(v) if k.split(".")[-1] in names else v for k, v in arrays.items()}


_TEXTURES: Mapping[str, Callable[[Arrays], Arrays]] = {
    "plain": lambda arrays: arrays,
    "repeated-tokens": lambda arrays: _map(arrays, ("h",), lambda h: h[:, :1].expand_as(h).contiguous()),
    "zero-queries": lambda arrays: _map(arrays, ("W_Q", "W"), torch.zeros_like),
    "huge-logits": lambda arrays: _map(arrays, ("W_K",), lambda w: 64.0 * w),
    "non-contiguous": lambda arrays: {k: v.movedim(0, -1).contiguous().movedim(-1, 0) for k, v in arrays.items()},
}
