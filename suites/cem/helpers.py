"""What several test files of the reference share: seeded float64 numbers, small energies, an error measure."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import gradcheck
from torch.func import functional_call

from cemverify.cem.energies import Energy, Interaction
from cemverify.cem.layers import DiagonalKind
from cemverify.cem.positions import Alibi, Rotary, SelfCross

Module = TypeVar("Module", bound=nn.Module)

U = 2.0**-53  # unit roundoff of float64

# The largest relative difference, in the Frobenius norm, between two ways to compute one attention or gated MLP with
# logits of order one: 16 u for each.
ROUNDING = 32 * U

DIAGONALS: tuple[DiagonalKind, ...] = ("none", "shared", "per-head")
POSITIONS = ("none", "alibi", "self-cross", "rotary")

# the biases of two heads
SLOPES = (2.0**-4, 2.0**-8)
TO_SELF, TO_OTHERS = (0.7, -0.4), (-0.2, 0.3)


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randn(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=generator(seed), dtype=torch.float64) * scale


def vector(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def token(*values: float) -> Tensor:
    """One token of one batch row, (1, 1, D)."""
    return vector(*values)[None, None]


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """|actual - expected| / |expected| in the Frobenius norm."""
    assert actual.shape == expected.shape
    return float(((actual - expected).norm() / expected.norm()).detach())


def slope(energy: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """The derivative of the energy's sum over all tokens, by autograd."""
    at = x.detach().clone().requires_grad_()
    (derivative,) = torch.autograd.grad(energy(at).sum(), at)
    return derivative


def gradient_of(energy: Energy, x: Tensor, h: Tensor) -> Tensor:
    """The gradient of the scalar energy by autograd, which every closed form must equal."""
    return slope(lambda at: energy(at, energy.remember(h)), x)


def interaction(diagonal: str = "none", position: str = "none", causal: bool = True) -> Interaction:
    """A random interaction energy of two heads with logits of order one for Gaussian tokens of six features."""
    K, R, D = 2, 4, 6
    biases: Any = {"alibi": Alibi(vector(*SLOPES)), "self-cross": SelfCross(vector(*TO_SELF), vector(*TO_OTHERS))}
    shape = {"none": None, "shared": (D,), "per-head": (K, D)}[diagonal]
    W_Q, W_K = (randn(K, R, D, seed=seed, scale=D**-0.5) for seed in (0, 1))
    d = None if shape is None else randn(*shape, seed=2, scale=D**-0.5)
    rotary = Rotary() if position == "rotary" else None
    return Interaction(W_Q, W_K, math.sqrt(R), diagonal=d, bias=biases.get(position), rotary=rotary, causal=causal)


def randomised(module: Module, seed: int, scale: float = 0.5) -> Module:
    """The module in float64 with every parameter drawn anew, including those that start at 0 or 1."""
    module = module.double()
    source = generator(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source, dtype=torch.float64) * scale)
    return module


def gradients_are_exact(module: nn.Module, *inputs: Tensor) -> bool:
    """Whether autograd agrees with finite differences along a random direction of all inputs and parameters."""
    names, values = zip(*module.named_parameters(), strict=True)

    def answer(*tensors: Tensor) -> Any:
        parameters = dict(zip(names, tensors[len(inputs) :], strict=True))
        output = functional_call(module, parameters, tensors[: len(inputs)])
        return output if isinstance(output, Tensor) else output[0]

    at = [tensor.detach().clone().requires_grad_() for tensor in (*inputs, *values)]
    return gradcheck(answer, at, rtol=1e-5, atol=1e-5, fast_mode=True, raise_exception=False)
