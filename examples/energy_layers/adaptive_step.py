"""A gradient step whose size each token finds for itself, as normalised gradients and line searches do.

    E(x) = |x - m|^4 / 4,    x' = x - eta(x) dE/dx,    eta(x) = 1 / (1 + 3 |x - m|^2)

3 |x - m|^2 is the largest eigenvalue of the energy's Hessian: where the energy is steep, the step is short.

`cemverify check examples.energy_layers.adaptive_step:mine`
"""

from torch import Tensor

from cemverify import energy_layer

D = 5


def energy(x: Tensor, m: Tensor) -> Tensor:
    return ((x - m) ** 2).sum(-1) ** 2 / 4  # (B, J)


def step_size(x: Tensor, m: Tensor) -> Tensor:
    return 1 / (1 + 3 * ((x - m) ** 2).sum(-1))  # (B, J)


def step(x: Tensor, m: Tensor) -> Tensor:
    for _ in range(2):
        away = x - m
        square = (away * away).sum(-1, keepdim=True)
        x = x - square * away / (1 + 3 * square)
    return x  # (B, J, D)


mine = energy_layer(
    update=step,
    energy=energy,
    dim=D,
    steps=2,
    step_size=step_size,
    returns="next state",
    monotone=True,
    permutable=True,
)
