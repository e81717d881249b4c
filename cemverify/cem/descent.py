"""Descent: how a layer minimises its energy (Eq. 3, 12, 13).

x^(0) = start,   x^(t+1) = x^(t) - eta P grad eps(x^(t) | memory),   t = 0 ... T-1, memory fixed

Beyond the paper, momentum adds mu times the last move, and each step may have an eta, a P and a temperature of its
own (docs/mathematics.md §18):

x^(t+1) = x^(t) - eta_t P_t grad eps_t(x^(t) | memory) + mu (x^(t) - x^(t-1)),   x^(-1) = x^(0)

and a token may stop once its steps lower the energy only a little.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.energies import Energy, Interaction
from cemverify.cem.norms import NoNorm, Norm
from cemverify.cem.preconditioners import Identity, Preconditioner


@dataclass(frozen=True, eq=False)
class Trajectory:
    """The states of a descent and their energies.

    Attributes:
        states: x^(0) ... x^(T), (T+1, B, J, D).
        energies: the energy at N(x^(t)), where the descent evaluates it, (T+1, B, J).
    """

    states: Tensor
    energies: Tensor


@dataclass(frozen=True, eq=False)
class Stopped:
    """A descent in which each token stops by itself.

    Attributes:
        states: x^(0) ... x^(T), (T+1, B, J, D); a token that has stopped stays where it is.
        steps: how many each token took, (B, J) of int64.
    """

    states: Tensor
    steps: Tensor


@dataclass(frozen=True, eq=False)
class Own:
    """What one step of a descent has of its own; None stands for what all steps share.

    Attributes:
        step_size: eta_t. preconditioner: P_t. temperature: tau_t, of an interaction energy.
    """

    step_size: float | Tensor | None = None
    preconditioner: Preconditioner | None = None
    temperature: float | None = None


@dataclass(frozen=True, eq=False)
class Descent:
    """T preconditioned gradient steps on an energy whose memory stays fixed.

    Attributes:
        steps: T, at least 1.
        step_size: eta > 0; a tensor, which can be learned, broadcasts against (B, J, D).
        preconditioner: P. One per head needs an interaction energy.
        norm: the normalisation inside the recursion.
        momentum: mu; a tensor () if it is learned. own: what each of the T steps has of its own; () if nothing.
        least_fall: in [0, 1]; a token stops after a step that lowers its energy by less than this share of the fall
            in its first step. 0: every token takes all T steps.

    Raises:
        ValueError: T is less than 1, a constant step size is not positive, `own` is not about T steps, or
            `least_fall` is not in [0, 1].
    """

    steps: int = 1
    step_size: float | Tensor = 1.0
    preconditioner: Preconditioner = field(default_factory=Identity)
    norm: Norm = field(default_factory=NoNorm)
    momentum: float | Tensor = 0.0
    own: tuple[Own, ...] = ()
    least_fall: float = 0.0

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a descent needs T >= 1 steps, not {self.steps}")
        if isinstance(self.step_size, float | int) and not self.step_size > 0:
            raise ValueError(f"the step size must be positive, not {self.step_size}")
        if len(self.own) not in (0, self.steps):
            raise ValueError(f"{self.steps} steps cannot have what {len(self.own)} steps have for themselves")
        if not 0 <= self.least_fall <= 1:
            raise ValueError(f"the least fall is a share of the first one, from 0 to 1, not {self.least_fall}")

    def __call__(self, energy: Energy, start: Tensor, memory: Any) -> Tensor:
        """x^(T) from x^(0) = start: (B, J, D) -> (B, J, D)."""
        if self.stops:
            return self.stopped(energy, start, memory).states[-1]
        x = before = start
        for t in range(self.steps):
            x, before = self.move(t, energy, x, before, memory), x
        return x

    @property
    def alike(self) -> bool:
        """Whether all steps are the same map of the state, `step`, as in the paper."""
        return len(self.own) == 0 and not self.has_momentum and not self.stops

    @property
    def stops(self) -> bool:
        """Whether tokens may take fewer than T steps."""
        return self.least_fall > 0

    @property
    def has_momentum(self) -> bool:
        """Whether a step adds a part of the last move; a learned mu counts."""
        return isinstance(self.momentum, Tensor) or self.momentum != 0

    def at(self, t: int) -> Descent:
        """Step t alone, without momentum and at the temperature of the energy: a descent of one step."""
        if not self.own:
            return replace(self, steps=1, momentum=0.0)
        own = self.own[t]
        step_size = self.step_size if own.step_size is None else own.step_size
        return Descent(1, step_size, own.preconditioner or self.preconditioner, self.norm)

    def energy_at(self, t: int, energy: Energy) -> Energy:
        """The energy that step t descends: the one given, at the step's own temperature if it has one.

        Raises:
            TypeError: the step has a temperature, and the energy has none.
        """
        temperature = self.own[t].temperature if self.own else None
        if temperature is None:
            return energy
        if not isinstance(energy, Interaction):
            raise TypeError("a step with a temperature needs an energy with one, an Interaction")
        return replace(energy, temperature=temperature)

    def move(self, t: int, energy: Energy, x: Tensor, before: Tensor, memory: Any) -> Tensor:
        """x^(t+1) from x^(t) = x and x^(t-1) = before: (B, J, D) -> (B, J, D)."""
        if self.alike:
            return self.step(energy, x, memory)
        stepped = self.at(t).step(self.energy_at(t, energy), x, memory)
        if t == 0 or not self.has_momentum:  # x^(-1) = x^(0)
            return stepped
        return stepped + self.momentum * (x - before)

    def step(self, energy: Energy, x: Tensor, memory: Any) -> Tensor:
        """x + update: (B, J, D) -> (B, J, D)."""
        if isinstance(self.step_size, Tensor):
            return x + self.update(energy, x, memory)
        # one pass over the states
        return torch.sub(x, self.direction(energy, x, memory), alpha=self.step_size)

    def trajectory(self, energy: Energy, start: Tensor, memory: Any) -> Trajectory:
        """The descent with all intermediate states and their energies, at the temperature of the energy."""
        states = [start]
        if self.stops:
            states = list(self.stopped(energy, start, memory).states)
        else:
            for t in range(self.steps):
                states.append(self.move(t, energy, states[-1], states[max(0, t - 1)], memory))
        energies = [energy(self.norm.into(x), memory) for x in states]
        return Trajectory(torch.stack(states), torch.stack(energies))

    def stopped(self, energy: Energy, start: Tensor, memory: Any) -> Stopped:
        """The descent with all intermediate states and the steps of each token (docs/mathematics.md §18g)."""
        states, reached = [start], self._energy_of(energy, start, memory)
        going = torch.ones_like(reached, dtype=torch.bool)  # (B, J)
        steps, enough = torch.zeros_like(reached, dtype=torch.int64), torch.zeros_like(reached)
        for t in range(self.steps):
            x = states[-1]
            moved = self.move(t, energy, x, states[max(0, t - 1)], memory)
            states.append(torch.where(going[..., None], moved, x))
            steps = steps + going
            before, reached = reached, self._energy_of(energy, states[-1], memory)
            fall = before - reached
            enough = self.least_fall * fall if t == 0 else enough
            going = going & (fall > 0) & (fall >= enough)
        return Stopped(torch.stack(states), steps)

    @torch.no_grad()
    def _energy_of(self, energy: Energy, x: Tensor, memory: Any) -> Tensor:
        """The energy of each token, which decides when it stops and passes no gradient on: (B, J, D) -> (B, J)."""
        return energy(self.norm.into(x), memory)

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
