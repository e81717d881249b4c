"""A hierarchical associative memory (Krotov): visible and hidden neurons, each with its own Lagrangian."""

import torch

from cemverify import energy_layer

STEP = 0.1
VISIBLE, HIDDEN = 9, 4

_draw = torch.Generator().manual_seed(8)
WEIGHTS = 0.5 * torch.randn(HIDDEN, VISIBLE, generator=_draw, dtype=torch.float64)
BIAS = 0.3 * torch.randn(VISIBLE, generator=_draw, dtype=torch.float64)


def activations(x):
    return x._replace(visible=torch.tanh(x.visible), hidden=torch.softmax(x.hidden, -1))


def lagrangian(x):  # (B,)
    return torch.logaddexp(x.visible, -x.visible).sum(-1) + torch.logsumexp(x.hidden, -1)


def energy(g):  # (B,)
    interaction = ((g.hidden @ WEIGHTS.to(g.hidden)) * g.visible).sum(-1)
    return -interaction - g.visible @ BIAS.to(g.visible)


def update(x):
    g = activations(x)
    to_visible = g.hidden @ WEIGHTS.to(g.hidden) + BIAS.to(g.visible)
    to_hidden = g.visible @ WEIGHTS.to(g.visible).mT
    return x._replace(visible=STEP * (to_visible - x.visible), hidden=STEP * (to_hidden - x.hidden))


mine = energy_layer(
    update=update,
    energy=energy,
    state={"visible": (VISIBLE,), "hidden": (HIDDEN,)},
    memory=None,
    energy_per="sequence",
    state_map=activations,
    lagrangian=lagrangian,
    leak=True,
    step_size=STEP,
)
