"""What several test files of the reference share: seeded float64 numbers, small energies, an error measure."""

from __future__ import annotations

import math
from typing import TypeVar

import torch
from torch import Tensor, nn

from cemverify.cem.activations import activation
from cemverify.cem.energies import Elementwise, Energy, Interaction
from cemverify.cem.layers import DiagonalKind
from cemverify.cem.positions import Alibi, Bias, Rotary, SelfCross

Module = TypeVar("Module", bound=nn.Module)

U = 2.0**-53  # unit roundoff of float64

# Two ways to compute one attention or gated MLP, with logits of order one, differ by at most this, relative
# in the Frobenius norm: 16 u for each of them.
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


def gradient_of(energy: Energy, x: Tensor, h: Tensor) -> Tensor:
    """The gradient of the scalar energy by autograd: what every closed form has to equal."""
    at = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(at, energy.remember(h)).sum(), at)
    return gradient


def interaction(
    *,
    diagonal: str = "none",
    position: str = "none",
    causal: bool = True,
    K: int = 2,
    R: int = 4,
    D: int = 6,
    seed: int = 0,
    temperature: float | None = None,
) -> Interaction:
    """A random interaction energy with logits of order one for Gaussian tokens."""
    biases: dict[str, Bias] = {
        "alibi": Alibi(vector(*SLOPES)),
        "self-cross": SelfCross(vector(*TO_SELF), vector(*TO_OTHERS)),
    }
    diagonals = {"none": None, "shared": (D,), "per-head": (K, D)}
    shape = diagonals[diagonal]
    return Interaction(
        randn(K, R, D, seed=seed, scale=D**-0.5),
        randn(K, R, D, seed=seed + 1, scale=D**-0.5),
        math.sqrt(R) if temperature is None else temperature,
        diagonal=None if shape is None else randn(*shape, seed=seed + 2, scale=D**-0.5),
        bias=biases.get(position),
        rotary=Rotary() if position == "rotary" else None,
        causal=causal,
    )


def scalar_interaction(W_Q: list[list[float]], W_K: list[list[float]]) -> Interaction:
    """Heads of dimension one at temperature one: the small examples with integer entries."""
    queries, keys = (torch.tensor(W, dtype=torch.float64)[:, None, :] for W in (W_Q, W_K))  # (K, 1, D)
    return Interaction(queries, keys, 1.0)


def scalar_mlp(v: float, w: float, name: str) -> Elementwise:
    """The element-wise energy of one feature and one hidden unit."""
    return Elementwise(vector(v)[None], vector(w)[None], activation(name))


def randomised(module: Module, seed: int, scale: float = 0.5) -> Module:
    """The module in float64 with every parameter drawn afresh, those that start at 0 or 1 too."""
    module = module.double()
    source = generator(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=source, dtype=torch.float64) * scale)
    return module
