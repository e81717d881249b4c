"""An equilibrium layer: the minimiser of a strongly convex energy, by a contraction that is unrolled."""

import torch

from cemverify import energy_layer

D, UNITS = 6, 4
ITERATIONS = 40

_draw = torch.Generator().manual_seed(18)
_w = torch.randn(UNITS, D, generator=_draw, dtype=torch.float64)
W = 0.9 * _w / torch.linalg.matrix_norm(_w, 2)
RATE = 1 / (1 + 0.5 * 0.81)  # the curvature lies between 1 and 1 + 0.81


def energy(g, m):  # (B, J, D), (B, J, UNITS) -> (B, J)
    z = g @ W.to(g).mT + m
    return 0.5 * g.square().sum(-1) + torch.logaddexp(z, -z).sum(-1)


def update(x, m):  # (B, J, D), (B, J, UNITS) -> (B, J, D)
    for _ in range(ITERATIONS):
        slope = x + torch.tanh(x @ W.to(x).mT + m) @ W.to(x)
        x = x - RATE * slope
    return x


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("J", UNITS),
    step="equilibrium",
    tolerance=1e-9,
    returns="next state",
    permutable=True,
    not_offered=("dtype:float32", "dtype:bfloat16"),
)
