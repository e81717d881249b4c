"""The concave-convex procedure for x.A x / 2 - sum log cosh(W x + b): each answer minimises the tangent problem."""

import torch

from cemverify import energy_layer

D, UNITS = 5, 7

_draw = torch.Generator().manual_seed(10)
W = 0.8 * torch.randn(UNITS, D, generator=_draw, dtype=torch.float64)
_root = 0.6 * torch.randn(D, D, generator=_draw, dtype=torch.float64)
CONVEX = _root @ _root.mT + 0.5 * torch.eye(D, dtype=torch.float64)
INVERSE = torch.linalg.inv(CONVEX)


def energy(g, b):  # (B, J, D), (B, J, UNITS) -> (B, J)
    z = g @ W.to(g).mT + b
    convex = 0.5 * ((g @ CONVEX.to(g)) * g).sum(-1)
    return convex - torch.logaddexp(z, -z).sum(-1)


def update(x, b):  # (B, J, D), (B, J, UNITS) -> (B, J, D)
    slope = torch.tanh(x @ W.to(x).mT + b) @ W.to(x)
    return slope @ INVERSE.to(x)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=("J", UNITS),
    step="cccp",
    returns="next state",
    permutable=True,
)
