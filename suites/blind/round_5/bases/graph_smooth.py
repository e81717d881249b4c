"""Laplacian smoothing along a sequence, with edges to the next token and the one after it; padding is masked."""

import torch

from cemverify import energy_layer

NEAR, FAR, PULL = 1.0, 0.25, 0.5
STEP = 0.15
BOUND = 4 * NEAR + 4 * FAR + PULL


def _valid(x, mask):  # (B, J, 1)
    return x.new_ones(x.shape[:2]).unsqueeze(-1) if mask is None else mask.to(x.dtype).unsqueeze(-1)


def energy(g, m, mask=None):  # (B, J, 4), (B, J, 4), (B, J) -> (B,)
    v = _valid(g, mask)
    near = (v[:, 1:] * v[:, :-1] * (g[:, 1:] - g[:, :-1]).square()).sum((1, 2))
    far = (v[:, 2:] * v[:, :-2] * (g[:, 2:] - g[:, :-2]).square()).sum((1, 2))
    anchor = (v * (g - m).square()).sum((1, 2))
    return 0.5 * (NEAR * near + FAR * far + PULL * anchor)


def update(x, m, mask=None):  # (B, J, 4), (B, J, 4), (B, J) -> (B, J, 4)
    w = _valid(x, mask)
    total = PULL * w * (x - m)
    for hop, strength in ((1, NEAR), (2, FAR)):
        if x.shape[1] > hop:
            flow = strength * w[:, hop:] * w[:, :-hop] * (x[:, hop:] - x[:, :-hop])
            rest = torch.zeros_like(x[:, :hop])
            total = total + torch.cat((rest, flow), 1) - torch.cat((flow, rest), 1)
    return -STEP * total


mine = energy_layer(
    update=update,
    energy=energy,
    dim=4,
    energy_per="sequence",
    coupled=True,
    masked=True,
    step_size=STEP,
    smoothness=BOUND,
    monotone=True,
)
