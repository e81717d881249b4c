"""Mean-field Potts model on a chain: five colours for each token, neighbours coupled by C, local fields from memory."""

import torch

from cemverify import energy_layer

Q = 5
STEP = 0.3

_draw = torch.Generator().manual_seed(7)
COUPLING = 0.6 * torch.randn(Q, Q, generator=_draw, dtype=torch.float64)  # not symmetric: left to right


def colours(x):  # (B, J, Q) -> (B, J, Q)
    return torch.softmax(x, -1)


def lagrangian(x):  # (B, J, Q) -> (B, J)
    return torch.logsumexp(x, -1)


def energy(g, m):  # (B, J, Q), (B, J, Q) -> (B,)
    pairs = ((g[:, :-1] @ COUPLING.to(g)) * g[:, 1:]).sum((1, 2))
    return -pairs - (g * m).sum((1, 2))


def update(x, m):  # (B, J, Q), (B, J, Q) -> (B, J, Q)
    p = torch.softmax(x, -1)
    nothing = torch.zeros_like(p[:, :1])
    from_left = torch.cat((nothing, p[:, :-1] @ COUPLING.to(p)), 1)
    from_right = torch.cat((p[:, 1:] @ COUPLING.to(p).mT, nothing), 1)
    return STEP * (from_left + from_right + m - x)


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", Q),
    memory=("J", Q),
    energy_per="sequence",
    coupled=True,
    state_map=colours,
    lagrangian=lagrangian,
    leak=True,
    step_size=STEP,
)
