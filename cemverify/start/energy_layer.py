"""An energy layer for the verifier: `cemverify check energy_layer:mine`.

An energy layer is any layer that claims to go down an energy. This one is correct as it stands: it retrieves from a
modern Hopfield network whose patterns are the memory. Put your own step and energy in its place.

B batch, J tokens, M patterns, D dimension.
"""

import torch
from torch import Tensor

from cemverify import energy_layer

DIM = 3  # keep it small: a fault shows in few dimensions, and is easy to read there
STEP_SIZE = 0.5


def energy(x: Tensor, memory: Tensor) -> Tensor:
    """(B, J, D), (B, M, D) -> (B, J): one value for each token."""
    return (x * x).sum(-1) / 2 - torch.logsumexp(x @ memory.mT, dim=-1)


def update(x: Tensor, memory: Tensor) -> Tensor:
    """What a step adds to x: (B, J, D), (B, M, D) -> (B, J, D)."""
    return STEP_SIZE * (torch.softmax(x @ memory.mT, dim=-1) @ memory - x)


# Declare what is true of your layer: several steps, a norm between state and energy, a preconditioner, ...
# Everything that is not declared is tested; docs/energy-layers.md lists the arguments.
mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", DIM),
    memory=("M", DIM),
    step_size=STEP_SIZE,
)
