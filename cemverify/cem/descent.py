"""Descent: how a layer minimises its energy (Eq. 3, 12, 13).

x^(0) = start,   x^(t+1) = x^(t) - eta P grad eps(x^(t) | memory),   t = 0 ... T-1, memory fixed
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.energies import Energy, Interaction
from cemverify.cem.norms import NoNorm, Norm
from cemverify.cem.preconditioners import Identity, Preconditioner


@dataclass(frozen=True)
class Trajectory:
    """The states of a descent and their energies.

    Attributes:
        states: x^(0) ... x^(T), (T+1, B, J, D).
        energies: the energy at N(x^(t)), where the descent evaluates it, (T+1, B, J).
    """

    states: Tensor
    energies: Tensor


@dataclass(frozen=True)
class Descent:
    """T preconditioned gradient steps on an energy whose memory stays fixed.

    Attributes:
        steps: T, at least 1.
        step_size: eta > 0; a tensor, so that it can be learned, broadcasts against (B, J, D).
        preconditioner: P. One per head needs an interaction energy.
        norm: the normalisation inside the recursion.

    Raises:
        ValueError: T is less than 1, or a constant step size is not positive.
    """

    steps: int = 1
    step_size: float | Tensor = 1.0
    preconditioner: Preconditioner = Identity()
    norm: Norm = NoNorm()

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a descent needs T >= 1 steps, not {self.steps}")
        if isinstance(self.step_size, float | int) and not self.step_size > 0:
            raise ValueError(f"the step size must be positive, not {self.step_size}")

    def __call__(self, energy: Energy, start: Tensor, memory: Any) -> Tensor:
        """x^(T) from x^(0) = start: (B, J, D) -> (B, J, D)."""
        x = start
        for _ in range(self.steps):
            x = self.step(energy, x, memory)
        return x

    def step(self, energy: Energy, x: Tensor, memory: Any) -> Tensor:
        """x + update: (B, J, D) -> (B, J, D)."""
        if isinstance(self.step_size, Tensor):
            return x + self.update(energy, x, memory)
        # in one pass over the states
        return torch.sub(x, self.direction(energy, x, memory), alpha=self.step_size)

    def trajectory(self, energy: Energy, start: Tensor, memory: Any) -> Trajectory:
        """The same descent with all intermediate states and energies."""
        states = [start]
        for _ in range(self.steps):
            states.append(self.step(energy, states[-1], memory))
        energies = [energy(self.norm.into(x), memory) for x in states]
        return Trajectory(torch.stack(states), torch.stack(energies))

    def update(self, energy: Energy, x: Tensor, memory: Any) -> Tensor:
        """-eta P grad eps(N(x) | memory), or -eta P G grad eps for a folded gain: (B, J, D) -> (B, J, D)."""
        return -self.step_size * self.direction(energy, x, memory)

    def direction(self, energy: Energy, x: Tensor, memory: Any) -> Tensor:
        """P grad eps(N(x) | memory), or P G grad eps for a folded gain: (B, J, D) -> (B, J, D)."""
        u = self.norm.into(x)
        if self.preconditioner.per_head:
            if not isinstance(energy, Interaction):
                raise TypeError("a preconditioner per head needs an energy with heads, an Interaction")
            gradients = self.norm.out(energy.head_gradients(u, memory))  # (B, K, J, D)
            return self.preconditioner.apply(gradients).sum(dim=1)
        return self.preconditioner.apply(self.norm.out(energy.gradient(u, memory)))
