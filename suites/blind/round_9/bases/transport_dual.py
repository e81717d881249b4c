"""Entropic optimal transport: a step of the two potentials down the dual, of which the plan's marginals are the gradient."""

import torch

from cemverify import energy_layer

EPS = 0.8
BOUND = 2 / EPS  # the variance of f_i + g_j under the plan is at most 2 (|f|^2 + |g|^2)
STEP = 1 / BOUND


def energy(g, m):  # rows (B, N), columns (B, M); cost (B, N, M), supply (B, N), demand (B, M) -> (B,)
    gain = (g.rows[:, :, None] + g.columns[:, None, :] - m.cost) / EPS
    shipped = (torch.softmax(m.supply, -1) * g.rows).sum(-1)
    wanted = (torch.softmax(m.demand, -1) * g.columns).sum(-1)
    return EPS * torch.logsumexp(gain.flatten(1), -1) - shipped - wanted


def update(x, m):
    """Two soft minima instead of one big softmax: the plan's rows, then the columns within each row."""
    wide = torch.promote_types(x.rows.dtype, torch.float32)
    rows, supply, demand = x.rows.to(wide), m.supply.to(wide), m.demand.to(wide)
    inner = (x.columns.to(wide)[:, None, :] - m.cost.to(wide)) / EPS  # (B, N, M)
    row = torch.softmax(rows / EPS + torch.logsumexp(inner, -1), -1)  # (B, N)
    within = torch.softmax(inner, -1)
    column = (row[:, None, :] @ within)[:, 0]  # (B, M)
    return x._replace(
        rows=(STEP * (torch.softmax(supply, -1) - row)).to(x.rows.dtype),
        columns=(STEP * (torch.softmax(demand, -1) - column)).to(x.columns.dtype),
    )


mine = energy_layer(
    update=update,
    energy=energy,
    state={"rows": ("N",), "columns": ("M",)},
    memory={"cost": ("N", "M"), "supply": ("N",), "demand": ("M",)},
    energy_per="sequence",
    step_size=STEP,
    smoothness=BOUND,
    monotone=True,
)
