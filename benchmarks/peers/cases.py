"""What any test by hand has to have first: options, weights and arrays that fit, and a way to call the layer."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any
from unittest import SkipTest

import numpy as np
import torch
from torch import Tensor

from cemverify import EnergyLayer, Implementation, reference
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig

PRECONDITIONERS: dict[str, dict[str, Any]] = {
    kind: {"preconditioner": PreconditionerConfig(kind, rank=2)}
    for kind in ("diagonal", "low-rank", "low-rank-printed")
}
STEPS: tuple[dict[str, Any], ...] = ({"steps": 3, "step_size": 0.4}, {"steps": 2}, {"step_size": 0.3})
NORMS: tuple[dict[str, Any], ...] = tuple({"norm": kind} for kind in ("scalar", "channel", "folded"))
SHARED = (*STEPS, *NORMS, *PRECONDITIONERS.values())
ATTENTION_OPTIONS: tuple[dict[str, Any], ...] = (
    {},
    *SHARED,
    {"temperature": 0.7},
    *({"diagonal": kind} for kind in ("shared", "per-head")),
    *({"position": kind} for kind in ("alibi", "self-cross", "rotary")),
    *({"preconditioner": replace(p["preconditioner"], per_head=True)} for p in PRECONDITIONERS.values()),
)
ACTIVATIONS = ("silu", "gelu", "gelu-tanh", "relu", "relu2", "sigmoid", "tanh", "softplus", "identity")
MLP_OPTIONS: tuple[dict[str, Any], ...] = (*({"activation": a} for a in ACTIVATIONS), *SHARED)


@dataclass(frozen=True)
class Case:
    """One call of a layer."""

    x: Tensor
    h: Tensor
    weights: Mapping[str, Tensor]
    config: Any

    def to(self, dtype: torch.dtype) -> Case:
        weights = {name: w.to(dtype) for name, w in self.weights.items()}
        return replace(self, x=self.x.to(dtype), h=self.h.to(dtype), weights=weights)


def attention_config(dim: int = 8, heads: int = 2, head_dim: int = 4, **options: Any) -> AttentionConfig:
    options = {"temperature": math.sqrt(head_dim), **options}
    return AttentionConfig(dim, heads=heads, head_dim=head_dim, **options)


def features(config: Any) -> set[str]:
    """The words with which an implementation says that it has no such configuration."""
    if isinstance(config, BlockConfig):
        return features(config.attention) | features(config.mlp)
    words = {f"norm:{config.norm}", f"preconditioner:{config.preconditioner.kind}"}
    words |= {"steps"} if config.steps > 1 else set()
    words |= {"step-size"} if config.step_size != 1 else set()
    if isinstance(config, MLPConfig):
        return words | {f"activation:{config.activation}"}
    words |= {f"diagonal:{config.diagonal}", f"position:{config.position}"}
    words |= {"preconditioner:per-head"} if config.preconditioner.per_head else set()
    words |= {"temperature"} if not math.isclose(config.tau, math.sqrt(config.R)) else set()
    return words | ({"head-dim"} if config.R * config.heads != config.dim else set())


def configurations(layer: Implementation, name: str, sizes: Mapping[str, int] | None = None) -> Iterator[Any]:
    """Every option by itself that the layer has, for a function of that name."""
    if name not in layer.functions:
        return
    of_attention = dict(sizes or {"dim": 8, "heads": 2, "head_dim": 4})
    of_mlp: dict[str, Any] = {"dim": of_attention["dim"], "hidden": of_attention.pop("hidden", 12)}
    attentions = [attention_config(**of_attention, **options) for options in ATTENTION_OPTIONS]
    mlps = [MLPConfig(**of_mlp, **options) for options in MLP_OPTIONS]
    plain = next((one for one in mlps if not features(one) & layer.not_offered.keys()), mlps[0])
    chosen: dict[str, list[Any]] = {
        "mlp": mlps,
        "mlp_energy": mlps[: len(ACTIVATIONS)],
        "block": [
            *(BlockConfig(one, replace(plain, norm=one.norm)) for one in attentions),
            *(BlockConfig(replace(attentions[0], norm=one.norm), one) for one in mlps),
        ],
    }
    for config in chosen.get(name, attentions):
        if not features(config) & layer.not_offered.keys():
            yield config


def weights(config: Any, generator: torch.Generator) -> dict[str, Tensor]:
    """Weights that leave answers of about one, float64."""
    if isinstance(config, BlockConfig):
        halves = {"attention": config.attention, "mlp": config.mlp}
        return {f"{half}.{key}": w for half, one in halves.items() for key, w in weights(one, generator).items()}
    D, P, norm = config.dim, config.preconditioner, config.norm
    shapes: dict[str, tuple[int, ...]] = {}
    lead: tuple[int, ...] = ()
    if isinstance(config, MLPConfig):
        shapes |= dict.fromkeys(("V", "W"), (config.hidden, D))
    else:
        shapes |= dict.fromkeys(("W_Q", "W_K"), (config.heads, config.R, D))
        lead = (config.heads,) if P.per_head else ()
        if config.diagonal != "none":
            shapes["diagonal"] = (config.heads, D) if config.diagonal == "per-head" else (D,)
        if config.position == "self-cross":
            shapes |= dict.fromkeys(("to_self", "to_others"), (config.heads,))
    shapes |= {"P_d": (*lead, D)} if P.kind != "identity" else {}
    shapes |= dict.fromkeys(("P_U", "P_V"), (*lead, D, P.rank)) if P.kind.startswith("low-rank") else {}
    shapes |= {"gain": (1,) if norm == "scalar" else (D,)} if norm != "none" else {}
    return {
        name: torch.randn(shape, generator=generator, dtype=torch.float64)
        * (shape[-1] ** -0.5 if name[0] in "VW" else 1)
        for name, shape in shapes.items()
    }


def case(layer: Implementation, config: Any, batch: int = 2, tokens: int = 5, seed: int = 0) -> Case:
    generator = torch.Generator().manual_seed(seed)
    dim = config.attention.dim if isinstance(config, BlockConfig) else config.dim
    x, h = (torch.randn(batch, tokens, dim, generator=generator, dtype=torch.float64) for _ in range(2))
    return Case(h if "start" in layer.not_offered else x, h, weights(config, generator), config)


def call(layer: Implementation, name: str, asked: Case) -> Tensor:
    """What the layer answers, as a torch array."""
    arrays = (asked.h,) if name in ("block", "decode") else (asked.x, asked.h)
    if layer.arrays == "torch":
        answer: Tensor = layer.functions[name](*arrays, asked.weights, asked.config)
        return answer
    if layer.arrays != "numpy":
        raise SkipTest("these tests are written for torch and NumPy")
    of_numpy = {key: w.detach().numpy() for key, w in asked.weights.items()}
    answer = layer.functions[name](*(array.detach().numpy() for array in arrays), of_numpy, asked.config)
    return torch.from_numpy(np.asarray(answer))


def expected(name: str, asked: Case) -> Tensor:
    """What the reference answers."""
    return call(reference, name, asked)


def slopes(layer: Implementation | None, name: str, asked: Case) -> tuple[Tensor, ...]:
    """Gradients in x, h and every weight of a sum over the layer's answer, or over the reference's."""
    h, x = (array.clone().requires_grad_() for array in (asked.h, asked.x))
    x = h if asked.x is asked.h else x
    weights = {key: w.clone().requires_grad_() for key, w in asked.weights.items()}
    answer = call(layer or reference, name, Case(x, h, weights, asked.config))
    return torch.autograd.grad(
        answer.sin().sum(), [x, h, *weights.values()], allow_unused=True, materialize_grads=True
    )


def layer_case(layer: EnergyLayer, tokens: int = 5, seed: int = 0) -> list[Tensor]:
    """The arguments of an energy layer whose state is one array: x and, if it has one, the memory."""
    if layer.arrays == "jax" or layer.masked or layer.step.noise or layer.domain or len(layer.state) > 1:
        raise SkipTest("written for torch and NumPy, one array, every state, no mask and no noise")
    generator = torch.Generator().manual_seed(seed)
    sizes = {"J": max(tokens, layer.shortest)}
    dtype = getattr(torch, layer.working_dtype)
    return [
        torch.randn(
            3, *(sizes.get(f"{n}", 4) if isinstance(n, str) else n for n in shape), generator=generator, dtype=dtype
        )
        for shape in (*layer.state.values(), *layer.memories.values())
    ]


def change(layer: EnergyLayer, arguments: list[Tensor]) -> Tensor:
    """What one call adds to the state."""
    if layer.arrays == "numpy":
        next_state = torch.from_numpy(np.asarray(layer.update(*(a.numpy() for a in arguments))))
    else:
        next_state = layer.update(*arguments)
    return next_state - arguments[0] if layer.step.returns == "next state" else next_state
