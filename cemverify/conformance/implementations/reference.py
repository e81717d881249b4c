"""The reference as an implementation of the contract: the modules that are also used for training."""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from cemverify.cem import blocked
from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, MLPConfig
from cemverify.cem.models import Block, BlockConfig
from cemverify.cem.torch_internals import is_batched
from cemverify.conformance.implementations.arrays import all_finite
from cemverify.conformance.implementations.contract import implementation

Weights = Mapping[str, Tensor]

_PARAMETERS = {"P_d": "preconditioner.p", "P_U": "preconditioner.U", "P_V": "preconditioner.V", "gain": "norm.gain"}


def attention(x: Tensor, h: Tensor, weights: Weights, config: AttentionConfig) -> Tensor:
    """x^(T) of `CEMAttention`, (B, J, D)."""
    return _call(config, weights, x, h)


def mlp(x: Tensor, h: Tensor, weights: Weights, config: MLPConfig) -> Tensor:
    """x^(T) of `CEMGatedMLP`, (B, J, D)."""
    return _call(config, weights, x, h)


def block(h: Tensor, weights: Weights, config: BlockConfig) -> Tensor:
    """The pre-norm `Block`, (B, J, D)."""
    _validate(config.attention, _part(weights, "attention"), h, h)
    _validate(config.mlp, _part(weights, "mlp"), h, h)
    output: Tensor = functional_call(_kept(config).module, _parameters(config, weights), (h,))[0]
    return output


def decode(h: Tensor, weights: Weights, config: AttentionConfig) -> Tensor:
    """Attention of h on itself, token by token from a cache whose keys and values are one tensor: (B, J, D)."""
    _validate(config, weights, h, h)
    energy, descent = _parts(config, weights)
    memory, outputs = None, []
    for i in range(h.shape[1]):
        token = h[:, i : i + 1]
        memory = energy.remember(token, memory)
        outputs.append(descent(energy, token, memory))
    return torch.cat(outputs, dim=1)


def prefill(h: Tensor, cache: Any, weights: Weights, config: AttentionConfig) -> tuple[Tensor, Any]:
    """Attention of h, which follows the tokens in the cache, on all of them, (B, J, D), and the cache after them."""
    _validate(config, weights, h, h)
    energy, descent = _parts(config, weights)
    memory = energy.remember(h, cache)
    return blocked.run(descent, energy, h, memory), memory


def attention_energy(x: Tensor, h: Tensor, weights: Weights, config: AttentionConfig) -> Tensor:
    """The interaction energy at x: (B, J)."""
    return _energy(x, h, weights, config)


def mlp_energy(x: Tensor, h: Tensor, weights: Weights, config: MLPConfig) -> Tensor:
    """The element-wise energy at x: (B, J)."""
    return _energy(x, h, weights, config)


reference = implementation(
    attention=attention,
    mlp=mlp,
    block=block,
    decode=decode,
    attention_energy=attention_energy,
    mlp_energy=mlp_energy,
    prefill=prefill,
    offers=("dtype:float16",),
)


def _call(config: Any, weights: Weights, x: Tensor, h: Tensor) -> Tensor:
    _validate(config, weights, x, h)
    output: Tensor = functional_call(_kept(config).module, _parameters(config, weights), (x, h))
    return output


def _energy(x: Tensor, h: Tensor, weights: Weights, config: Any) -> Tensor:
    _validate(config, weights, x, h)
    energy, _ = _parts(config, weights)
    value: Tensor = energy(x, energy.remember(h))
    return value


_KEPT = 4  # modules at most, because a compiler reads every key


class _Kept(NamedTuple):
    """What is made once for each configuration."""

    module: nn.Module  # without storage: its parameters come with each case
    shapes: dict[str, torch.Size]  # of its parameters, by name


class _Modules(threading.local):
    """The modules of a thread, by their configuration: `functional_call` lends them parameters."""

    def __init__(self) -> None:
        self.by_config: dict[Any, _Kept] = {}


_modules = _Modules()


def _kept(config: AttentionConfig | MLPConfig | BlockConfig) -> _Kept:
    """The module for a configuration and the shapes of its parameters, made where this thread has none."""
    modules = _modules.by_config
    if config not in modules:
        if len(modules) == _KEPT:
            modules.clear()
        kind: Any = {AttentionConfig: CEMAttention, MLPConfig: CEMGatedMLP, BlockConfig: Block}[type(config)]
        with torch.device("meta"):
            module = kind(config, torch.Generator())
        modules[config] = _Kept(module, {name: array.shape for name, array in module.named_parameters()})
    return modules[config]


class _Parts(nn.Module):
    """Wraps a layer's energy and descent as a module, because `functional_call` calls only modules."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self) -> tuple[Any, Any]:
        return self.layer.energy, self.layer.descent


def _parts(config: Any, weights: Weights) -> tuple[Any, Any]:
    parameters = {f"layer.{name}": value for name, value in _parameters(config, weights).items()}
    parts: tuple[Any, Any] = functional_call(_Parts(_kept(config).module), parameters, ())
    return parts


def _parameters(config: Any, weights: Weights) -> dict[str, Tensor]:
    """Translates the contract's names to the module's: P_d is sqrt(D) p."""
    if isinstance(config, BlockConfig):
        return {
            f"{part}.{name}": value
            for part in ("attention", "mlp")
            for name, value in _parameters(getattr(config, part), _part(weights, part)).items()
        }
    return {
        _PARAMETERS.get(name, name): value / math.sqrt(config.dim) if name == "P_d" else value
        for name, value in weights.items()
    }


def _part(weights: Weights, part: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{part}."): w for name, w in weights.items() if name.startswith(f"{part}.")}


def _validate(config: Any, weights: Weights, x: Tensor, h: Tensor) -> None:
    """Rejects bad input as the contract demands, each time with a sentence on what was given and what is
    allowed."""
    if config.steps < 1:
        raise ValueError(f"T must be at least 1, not {config.steps}")
    if not (config.step_size > 0 and math.isfinite(config.step_size)):
        raise ValueError(f"the step size must be positive and finite, not {config.step_size}")
    if isinstance(config, AttentionConfig) and not (config.tau > 0 and math.isfinite(config.tau)):
        raise ValueError(f"the temperature must be positive and finite, not {config.tau}")
    arrays = {"x": x, "h": h, **weights}
    for name, array in arrays.items():
        if not array.is_floating_point():
            raise TypeError(f"{name} must be floating point, not {array.dtype}")
        if array.dtype != x.dtype:
            raise TypeError(f"{name} is {array.dtype} but x is {x.dtype}; give one dtype")
        has_values = not (torch.compiler.is_compiling() or is_batched(array))  # that can be inspected
        if has_values and not all_finite(array):
            raise ValueError(f"{name} contains NaN or infinity")
    if x.dim() != 3 or x.shape != h.shape or x.shape[-1] != config.dim or 0 in x.shape:
        raise ValueError(
            f"x and h must both be (batch, tokens, {config.dim}) and not empty, "
            f"not {tuple(x.shape)} and {tuple(h.shape)}"
        )
    shapes = _kept(config).shapes
    declared = {_PARAMETERS.get(name, name): value for name, value in weights.items()}
    if missing := shapes.keys() - declared.keys():
        raise ValueError(f"this configuration needs the weights {', '.join(sorted(missing))}")
    for name, value in declared.items():
        if name not in shapes:
            raise ValueError(f"this configuration has no weight {name}; its weights: {', '.join(sorted(shapes))}")
        if value.shape != shapes[name]:
            raise ValueError(f"{name} must be {tuple(shapes[name])}, not {tuple(value.shape)}")
