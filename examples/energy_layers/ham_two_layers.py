"""A hierarchical associative memory of two layers of neurons (Krotov, arXiv 2107.06446).

Each layer has a Lagrangian, whose gradient is its activation, and one synapse joins the two:

    g_v = dL_v/dv = tanh(v),    g_h = dL_h/dh = softmax(beta h)
    E = (v . g_v - L_v) + (h . g_h - L_h) - g_h . W g_v
    v' = v + eta (W^T g_h - v),    h' = h + eta (W g_v - h)

that is, a step of -eta dE/dg in both layers at once.

`cemverify check examples.energy_layers.ham_two_layers:mine`
"""

from typing import Any

import torch
from torch import Tensor

from cemverify import energy_layer

V, H = 5, 3
BETA, STEP_SIZE = 2.0, 0.1

generator = torch.Generator().manual_seed(4)
W = torch.randn(H, V, generator=generator, dtype=torch.float64)


def log_cosh(z: Tensor) -> Tensor:
    return torch.logaddexp(z, -z) - torch.log(torch.tensor(2.0, dtype=z.dtype))


def lagrangian(x: Any) -> Tensor:
    return log_cosh(x.visible).sum(-1) + torch.logsumexp(BETA * x.hidden, -1) / BETA  # (B,)


def activations(x: Any) -> tuple[Tensor, Tensor]:
    return torch.tanh(x.visible), torch.softmax(BETA * x.hidden, -1)


def synapse(g: Any) -> Tensor:
    return -torch.einsum("bh,hv,bv->b", g.hidden, W.to(g.hidden), g.visible)  # (B,)


def update(x: Any) -> tuple[Tensor, Tensor]:
    g_v, g_h = activations(x)
    return STEP_SIZE * (g_h @ W.to(g_h) - x.visible), STEP_SIZE * (g_v @ W.to(g_v).T - x.hidden)


mine = energy_layer(
    update=update,
    energy=synapse,
    state={"visible": (V,), "hidden": (H,)},
    memory=None,
    energy_per="sequence",
    state_map=activations,
    lagrangian=lagrangian,
    leak=True,
    step_size=STEP_SIZE,
    parameters={"W": W},
)
