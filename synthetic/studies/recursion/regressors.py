"""Scalar regressors, many of one kind at a time: every parameter has a leading axis over S replicates.

Each replicate has its own weights and its own function to learn, and no operation mixes two replicates. So training S
stacked replicates equals training S models one by one, in fewer and larger matrix products.

    inputs (S, N, d) -> state x (S, N, D), lifted if D > d -> the core -> linear read-out -> predictions (S, N)

The core is a recursive CEM MLP, or the gated MLP that it replaces: untied, perhaps applied T times. Several cores may
follow each other, each with its own weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn

from cemverify.cem.activations import activation
from cemverify.cem.descent import Descent, Trajectory
from cemverify.cem.energies import Elementwise
from cemverify.cem.norms import NormKind, norm
from cemverify.cem.preconditioners import Preconditioner, PreconditionerKind, preconditioner
from synthetic.gp.tasks import Stream, Streams

StepSizeKind = Literal["fixed", "learned", "1/T"]

# Small initial weights: each of the T steps adds to x, and a deep recursion should not start far away.
INIT_STD = 0.05


@dataclass(frozen=True)
class CEMSpec:
    """A recursive CEM MLP between a lift and a read-out."""

    width: int = 32  # D, of the state; at least the number of inputs, which are lifted if fewer
    hidden: int = 128  # M
    steps: int = 1  # T
    norm: NormKind = "none"  # RMSNorm inside the recursion
    preconditioner: PreconditionerKind = "identity"  # P; `rank` is its rank, if it has one
    rank: int = 4
    # eta: 1; or learned, positive, starting at 1; or 1/T, so that the steps sum to 1 for any T
    step_size: StepSizeKind = "fixed"
    activation: str = "silu"
    layers: int = field(default=1, metadata={"added": True})  # how many in a row, each with its own weights

    @property
    def depth(self) -> int:
        """T: the number of steps in all layers together."""
        return self.steps * self.layers


@dataclass(frozen=True)
class DrawnSpec(CEMSpec):
    """A recursive CEM MLP that is trained with a new T for each batch, drawn uniformly from 1 ... steps.

    With step_size "1/T" each T is an Euler scheme for one flow, x' = -P grad eps(x), over a unit of time;
    more steps make the scheme finer but do not go further.
    """


@dataclass(frozen=True)
class GatedMLPSpec:
    """The gated MLP that CEM's replaces, x + down(sigma(gate x) * up x), with three untied weights."""

    # width, hidden: D and M
    width: int = 32
    hidden: int = 128
    reuse: int = 1  # how often the same MLP is applied, each time to its last output
    activation: str = "silu"
    layers: int = field(default=1, metadata={"added": True})

    @property
    def depth(self) -> int:
        """T: the number of MLP applications in all layers together."""
        return self.reuse * self.layers


Spec = CEMSpec | DrawnSpec | GatedMLPSpec


class RegressorStack(nn.Module):
    """S stacked regressors of one kind.

    Parameters: lift (S, D, d) where the state is wider than the inputs; those of the core; readout (S, D, 1),
    intercept (S, 1).

    A parameter's initial values depend only on its name, its shape and the replicate, so models that share a
    parameter start with the same values in it.

    Args:
        spec: the kind. inputs: d. streams: one for each replicate.
        draw: names the draw of the initial values.
    """

    def __init__(self, spec: Spec, inputs: int, streams: Sequence[Streams], draw: str = "") -> None:
        super().__init__()
        self.spec = spec
        start = _Start(streams, draw)
        D = spec.width
        self.lift = start.normal("lift", D, inputs, std=inputs**-0.5) if inputs < D else None
        self.core, *further = (
            CEMCore(spec, s) if isinstance(spec, CEMSpec) else GatedMLPCore(spec, s)
            for s in (start, *(_Start(streams, f"{draw} of layer {i}") for i in range(1, spec.layers)))
        )
        self.further = nn.ModuleList(further)
        self.readout = start.normal("readout", D, 1, std=D**-0.5)
        self.intercept = start.constant(0.0, 1)

    def forward(self, inputs: Tensor, steps: int | None = None) -> Tensor:
        """Predictions (S, N) for inputs (S, N, d), with `steps` steps in each layer if given."""
        x = self.state(inputs)  # (S, N, D)
        for layer in (self.core, *self.further):
            x = layer(x, self.spec.depth // self.spec.layers if steps is None else steps)
        predictions: Tensor = (x @ self.readout)[..., 0] + self.intercept
        return predictions

    def state(self, inputs: Tensor) -> Tensor:
        """The initial states x^(0), (S, N, D): the inputs (S, N, d), lifted if the state is wider."""
        return inputs if self.lift is None else inputs @ self.lift.mT

    def stopped(self, inputs: Tensor, steps: int, least_fall: float) -> tuple[Tensor, Tensor] | None:
        """Predictions (S, N) for points that stop by energy, and the steps of each (S, N); None without an energy."""
        if not isinstance(self.core, CEMCore):
            return None
        x = self.state(inputs)
        energy = self.core.energy
        path = replace(self.core.descent(steps), least_fall=least_fall).stopped(energy, x, energy.remember(x))
        return (path.states[-1] @ self.readout)[..., 0] + self.intercept, path.steps

    def trajectory(self, inputs: Tensor) -> Trajectory | None:
        """Every state and energy of the descent; None for a core without an energy."""
        if not isinstance(self.core, CEMCore):
            return None
        x = self.state(inputs)
        energy = self.core.energy
        return self.core.descent(self.spec.depth).trajectory(energy, x, energy.remember(x))


class CEMCore(nn.Module):
    """T descent steps on an element-wise energy, with x^(0) as the memory.

    Parameters: V, W (S, M, D); d (S, 1, D), P_U, P_V (S, D, rank); gain (S, 1, 1 or D); log_step (S, 1, 1).
    """

    def __init__(self, spec: CEMSpec, start: _Start) -> None:
        super().__init__()
        self.spec = spec
        D, M = spec.width, spec.hidden
        self.V = start.normal("V", M, D, std=INIT_STD)
        self.W = start.normal("W", M, D, std=INIT_STD)
        low_rank = spec.preconditioner in ("low-rank", "low-rank-printed")
        start_of_d = math.log(math.e - 1)  # its softplus is 1, so P = I except for U
        self.d = start.constant(start_of_d, 1, D) if spec.preconditioner != "identity" else None
        self.P_U = start.normal("P_U", D, spec.rank, std=0.02) if low_rank else None
        self.P_V = start.constant(0.0, D, spec.rank) if low_rank else None
        self.gain = start.constant(1.0, 1, 1 if spec.norm == "scalar" else D) if spec.norm != "none" else None
        self.log_step = start.constant(0.0, 1, 1) if spec.step_size == "learned" else None
        self.activation = activation(spec.activation)

    def forward(self, x: Tensor, steps: int) -> Tensor:
        """The states x^(T), (S, N, D), after T steps from x^(0), (S, N, D)."""
        energy = self.energy
        return self.descent(steps)(energy, x, energy.remember(x))

    @property
    def energy(self) -> Elementwise:
        """The energies of all replicates: one value per replicate and point, (S, N)."""
        return Elementwise(self.V, self.W, self.activation)

    def descent(self, steps: int) -> Descent:
        """The descent on the energies of all replicates in this many steps: step size, P and norm."""
        fixed = 1.0 / steps if self.spec.step_size == "1/T" else 1.0
        eta = fixed if self.log_step is None else self.log_step.exp()
        return Descent(steps, eta, self.preconditioner, norm(self.spec.norm, self.gain))

    @property
    def preconditioner(self) -> Preconditioner:
        """The preconditioner P of every replicate."""
        return preconditioner(self.spec.preconditioner, self.d, self.P_U, self.P_V)


class GatedMLPCore(nn.Module):
    """x <- x + down(sigma(gate x) * up x), once or several times.

    Parameters: gate, up (S, M, D), which start as CEM's V and W do; down (S, D, M), which starts as V^T.
    """

    def __init__(self, spec: GatedMLPSpec, start: _Start) -> None:
        super().__init__()
        D, M = spec.width, spec.hidden
        self.gate = start.normal("V", M, D, std=INIT_STD)
        self.up = start.normal("W", M, D, std=INIT_STD)
        self.down = nn.Parameter(self.gate.detach().mT.clone())
        self.activation = activation(spec.activation)

    def forward(self, x: Tensor, steps: int) -> Tensor:
        """The states (S, N, D) after the MLP has been added this many times to x, (S, N, D)."""
        for _ in range(steps):
            x = x + (self.activation.sigma(x @ self.gate.mT) * (x @ self.up.mT)) @ self.down.mT
        return x


class _Start:
    """Initial values of stacked parameters."""

    def __init__(self, streams: Sequence[Streams], draw: str) -> None:
        self.streams = streams
        self.draw = draw

    def normal(self, name: str, *shape: int, std: float) -> nn.Parameter:
        """(S, *shape), N(0, std^2), each replicate from its own stream."""
        drawn = [torch.randn(shape, generator=s.generator(Stream.WEIGHTS, name + self.draw)) for s in self.streams]
        return nn.Parameter(std * torch.stack(drawn))

    def constant(self, value: float, *shape: int) -> nn.Parameter:
        """(S, *shape), filled with the value."""
        return nn.Parameter(torch.full((len(self.streams), *shape), value))
