"""Causal self-attention on the present state with padding: queries from g, keys and values from the held state."""

import torch

from cemverify import PRESENT_STATE, energy_layer

D = 6
TAU = 1.7
STEP = 0.5
RIDGE = 0.2

_draw = torch.Generator().manual_seed(17)
A = 0.5 * torch.randn(D, D, generator=_draw, dtype=torch.float64)


def _mask(x, mask):
    return torch.ones(x.shape[:2], dtype=torch.bool, device=x.device) if mask is None else mask


def energy(g, m, mask=None):  # (B, J, D), (B, J, D), (B, J) -> (B, J)
    valid = _mask(g, mask)
    past = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool, device=g.device).tril()
    allowed = past & (valid[:, None, :] | ~valid[:, :, None])  # a padded query, whose row is dropped, sees all
    scores = (g @ A.to(g) @ m.mT / TAU).masked_fill(~allowed, -torch.inf)
    e = -TAU * torch.logsumexp(scores, -1) + 0.5 * RIDGE * g.square().sum(-1)
    return torch.where(valid, e, torch.zeros_like(e))


def update(x, mask=None):  # (B, J, D), (B, J) -> (B, J, D)
    real = _mask(x, mask)
    seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril()
    seen = seen & (real[:, None, :] | ~real[:, :, None])
    keys = x @ A.to(x).mT
    a = torch.softmax((x @ keys.mT / TAU).masked_fill(~seen, -torch.inf), -1)
    move = STEP * (a @ keys - RIDGE * x)
    return torch.where(real[..., None], move, torch.zeros_like(move))


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", D),
    memory=PRESENT_STATE,
    masked=True,
    step_size=STEP,
)
