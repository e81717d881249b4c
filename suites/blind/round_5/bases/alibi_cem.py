"""CEM attention with ALiBi in three heads, a diagonal preconditioner and two steps on the same memory."""

import torch

from cemverify import energy_layer

D, K, R = 6, 3, 4
TAU = 2.0
STEP = 0.5
SLOPES = (2.0**-4, 2.0**-8, 2.0**-2)  # Press et al., for three heads

_draw = torch.Generator().manual_seed(4)
W_Q = 0.5 * torch.randn(K, R, D, generator=_draw, dtype=torch.float64)
W_K = 0.5 * torch.randn(K, R, D, generator=_draw, dtype=torch.float64)
SCALES = 0.5 + torch.rand(D, generator=_draw, dtype=torch.float64)


def biases(tokens, like):  # (K, J, J)
    at = torch.arange(tokens, device=like.device)
    distance = (at[:, None] - at).to(torch.float64)
    slopes = torch.tensor(SLOPES, dtype=torch.float64, device=like.device)
    return (-slopes[:, None, None] * distance).masked_fill(distance < 0, -torch.inf).to(like.dtype)


def energy(g, h):  # (B, J, D), (B, J, D) -> (B, J)
    q = torch.einsum("krd,bjd->bkjr", W_Q.to(g), g)
    k = torch.einsum("krd,bjd->bkjr", W_K.to(g), h)
    scores = q @ k.mT / TAU + biases(g.shape[1], g)
    return -TAU * torch.logsumexp(scores, -1).sum(1)


def update(x, h):  # (B, J, D), (B, J, D) -> (B, J, D)
    start = x
    keys = torch.einsum("krd,bjd->bkjr", W_K.to(x), h)
    bias = biases(x.shape[1], x)
    for _ in range(2):
        queries = torch.einsum("krd,bjd->bkjr", W_Q.to(x), x)
        a = torch.softmax(queries @ keys.mT / TAU + bias, -1)
        direction = torch.einsum("krd,bkjr->bjd", W_Q.to(x), a @ keys)
        x = x + STEP * SCALES.to(x) * direction
    return x - start


mine = energy_layer(
    update=update,
    energy=energy,
    dim=D,
    steps=2,
    step_size=STEP,
    preconditioner=SCALES,
)
