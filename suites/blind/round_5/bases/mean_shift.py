"""Mean shift: a step of size one up the log of a kernel density estimate with weighted points."""

import torch

from cemverify import energy_layer

WIDTH = 1.4  # of the Gaussian kernel


def energy(g, m):  # (B, J, 4), points (B, M, 4), logits (B, M) -> (B, J)
    squares = (g[:, :, None] - m.points[:, None]).square().sum(-1)  # (B, J, M)
    return -(WIDTH**2) * torch.logsumexp(m.logits[:, None] - squares / (2 * WIDTH**2), -1)


def update(x, m):  # -> (B, J, 4)
    distances = (x[:, :, None] - m.points[:, None]).square().sum(-1)
    share = torch.softmax(m.logits[:, None] - 0.5 * distances / WIDTH**2, -1)
    return share @ m.points - x


mine = energy_layer(
    update=update,
    energy=energy,
    state=("J", 4),
    memory={"points": ("M", 4), "logits": ("M",)},
    monotone=True,
    permutable=True,
)
