"""An energy written like a loss: one scalar, the mean over batch and tokens, with a known bound on its curvature.

    E(x | h) = mean over b, j of sum_d log cosh(x_d - (U h)_d)
    x' = x - eta tanh(x - U h),    the gradient of the *sum*: a mean would make the step depend on the batch

The curvature of log cosh is at most 1, so that a step of 1 keeps under E(x) + dE . (x' - x) + |x' - x|^2 / 2.

`cemverify check examples.energy_layers.averaged_energy:mine`
"""

import torch
from torch import Tensor

from cemverify import energy_layer

D, CURVATURE, STEP_SIZE = 3, 1.0, 1.0

generator = torch.Generator().manual_seed(8)
U = torch.randn(D, D, generator=generator, dtype=torch.float64)


def log_cosh(z: Tensor) -> Tensor:
    return torch.logaddexp(z, -z) - torch.log(torch.tensor(2.0, dtype=z.dtype))


def energy(x: Tensor, h: Tensor) -> Tensor:
    return log_cosh(x - h @ U.to(h).T).sum(-1).mean()  # a scalar


def update(x: Tensor, h: Tensor) -> Tensor:
    return -STEP_SIZE * torch.tanh(x - h @ U.to(h).T)  # (B, J, D)


mine = energy_layer(
    update=update,
    energy=energy,
    dim=D,
    energy_per="batch",
    mean_over=("batch", "tokens"),
    step_size=STEP_SIZE,
    smoothness=CURVATURE,
    permutable=True,
)
