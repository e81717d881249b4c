"""A set of tokens drawn to their mean by a robust energy, and each to its own anchor; padding takes no part in the mean."""

import torch

from cemverify import energy_layer

D, UNITS = 5, 7
PULL = 0.4
STEP = 0.2

_draw = torch.Generator().manual_seed(33)
W = 0.5 * torch.randn(UNITS, D, generator=_draw, dtype=torch.float64)


def _valid(x, mask):  # (B, J, 1)
    return x.new_ones(x.shape[:2]).unsqueeze(-1) if mask is None else mask.to(x.dtype).unsqueeze(-1)


def energy(g, m, mask=None):  # (B, J, D), (B, J, D), (B, J) -> (B,)
    v = _valid(g, mask)
    mean = (v * g).sum(1, keepdim=True) / v.sum(1, keepdim=True).clamp_min(1)
    z = (g - mean) @ W.to(g).mT
    apart = torch.logaddexp(z, -z).sum(-1)
    return (v[..., 0] * (apart + 0.5 * PULL * (g - m).square().sum(-1))).sum(1)


def update(x, m, mask=None):  # (B, J, D), (B, J, D), (B, J) -> (B, J, D)
    w = _valid(x, mask)
    count = w.sum(1, keepdim=True).clamp_min(1)
    centre = (w * x).sum(1, keepdim=True) / count
    slope = w * (torch.tanh((x - centre) @ W.to(x).mT) @ W.to(x))
    total = slope - w * slope.sum(1, keepdim=True) / count + PULL * w * (x - m)
    return -STEP * total


mine = energy_layer(
    update=update,
    energy=energy,
    dim=D,
    energy_per="sequence",
    coupled=True,
    masked=True,
    permutable=True,
    step_size=STEP,
)
