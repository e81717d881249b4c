"""Cases: the questions that a property asks. `spaces` decides which."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.models import BlockConfig

Layer = Literal["attention", "mlp", "block"]
Config = AttentionConfig | MLPConfig | BlockConfig
Values = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True, repr=False)
class Case:
    """One question to an implementation."""

    config: Config  # which layer, with which options
    x: Tensor  # where the descent starts, (B, J, D)
    h: Tensor  # the memory, (B, J, D)
    weights: Mapping[str, Tensor]  # see `cemverify.conformance.implementations.contract.implementation`

    @property
    def layer(self) -> Layer:
        """The layer that the case is for: attention, mlp or block."""
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
        """The configuration of an attention or an MLP case."""
        assert isinstance(self.config, AttentionConfig | MLPConfig)
        return self.config

    @property
    def sizes(self) -> dict[str, int]:
        """How large it is: steps T, tokens J, rows B, hidden units M, heads K, features D, where it has them."""
        parts = [self.part("attention"), self.part("mlp")] if isinstance(self.config, BlockConfig) else [self]
        steps = max(part.layer_config.steps for part in parts)
        sizes = {"T": steps, "J": self.h.shape[1], "B": self.h.shape[0], "D": self.h.shape[2]}
        for part in parts:
            sizes |= {"K": part.attention.heads} if part.layer == "attention" else {"M": part.mlp.hidden}
        return sizes

    def with_states(self, change: Callable[[Tensor], Tensor]) -> Case:
        """The case with x and h changed. If they are one array, they stay one."""
        h = change(self.h)
        return replace(self, x=h if self.x is self.h else change(self.x), h=h)

    def to(self, dtype: torch.dtype) -> Case:
        """The case, or itself, with every array rounded to that dtype. If x and h are one array, they stay one."""
        if all(array.dtype == dtype for array in (self.x, self.h, *self.weights.values())):
            return self
        weights = {name: array.to(dtype) for name, array in self.weights.items()}
        return replace(self, weights=weights).with_states(lambda states: states.to(dtype))

    def turn(self, of: int) -> int:
        """A number from 0 to `of` - 1 that the values of h in float64 decide, so that it varies from case to case."""
        return zlib.crc32(self.h.contiguous().numpy().tobytes()) % of

    def beginning(self, tokens: int) -> Case:
        """The first tokens of each row. If x and h are one array, they stay one."""
        return self.tokens(0, tokens)

    def tokens(self, begin: int, end: int) -> Case:
        """The tokens of each row from `begin` on, up to `end`."""
        return self.with_states(lambda states: states[:, begin:end])

    def having(self, **options: Any) -> Case:
        """The case with other options."""
        return replace(self, config=replace(self.config, **options))

    def part(self, layer: Literal["attention", "mlp"]) -> Case:
        """The attention or the MLP of a block as its own case, with its weights."""
        assert isinstance(self.config, BlockConfig)
        config = getattr(self.config, layer)
        prefix = f"{layer}."
        weights = {name.removeprefix(prefix): w for name, w in self.weights.items() if name.startswith(prefix)}
        return Case(config, self.x, self.h, weights)

    def __repr__(self) -> str:
        return f"Case({self.layer}, x {tuple(self.x.shape)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:  # noqa: ARG002
        """Hypothesis prints failing arguments, and would print every array of a dataclass."""
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
    """The options of a config that differ from their defaults or have no default."""
    options = {}
    for f in sorted(fields(config), key=lambda f: bool(f.kw_only)):  # in the constructor's order
        value = getattr(config, f.name)
        default = f.default_factory() if callable(f.default_factory) else f.default
        if value != default:
            options[f.name] = non_defaults(value) if is_dataclass(value) else value
    return options


def unchecked(config: Config, **options: Any) -> Config:
    """A config with options that its constructor would refuse, to see whether an implementation refuses them."""
    changed = copy.copy(config)
    for name, value in options.items():
        object.__setattr__(changed, name, value)
    return changed


def dense_case(config: Config, batch: int, tokens: int, seed: int) -> Case:
    """A well-conditioned case of any size, drawn from a seed: standard normal states, W ~ N(0, 1/D)."""
    rng = np.random.default_rng(seed)
    dim = config.attention.dim if isinstance(config, BlockConfig) else config.dim
    shapes = weight_shapes(config)
    weights = {name: tensor(scaled(name, rng.standard_normal(shape))) for name, shape in shapes.items()}
    x, h = (tensor(rng.standard_normal((batch, tokens, dim))) for _ in range(2))
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


def scaled(name: str, values: Values) -> Values:
    """Scales standard normals so that the weights have effects of order one, or leaves them unchanged."""
    match name.split(".")[-1]:
        case "W_Q" | "W_K" | "V" | "W":
            return values / math.sqrt(values.shape[-1])
        case "gain":
            return np.exp(values / 2)  # positive, like a trained gain
        case "P_U" | "P_V":
            return values / math.sqrt(values.shape[-2])
        case _:
            return values


def tensor(values: Values) -> Tensor:
    """Values as a float64 tensor with its own memory."""
    return torch.from_numpy(np.array(values, dtype=np.float64, order="C"))
