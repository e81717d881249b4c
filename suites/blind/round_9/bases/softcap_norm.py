"""Causal attention with normalised queries (each head has a Lagrangian) and capped scores, and a backward pass by hand."""

import torch
from cemverify import energy_layer

K, R, D = 2, 3, 4
CAP, TAU, STEP, EPS = 3.0, 0.8, 0.5, 1e-2
_draw = torch.Generator().manual_seed(53)
W_K = torch.randn(K, R, D, generator=_draw, dtype=torch.float64)
GAIN = torch.tensor([1.5, 2.5], dtype=torch.float64)  # of each head

def length(x):  # (B, J, K R) -> (B, J, K, 1)
    return (x.unflatten(-1, (K, R)).square().sum(-1, keepdim=True) + EPS).sqrt()

def lagrangian(x):  # (B, J, K R) -> (B, J)
    return (GAIN.to(x) * length(x)[..., 0]).sum(-1)

def norm(x):  # (B, J, K R) -> (B, J, K R)
    return (GAIN.to(x)[:, None] * x.unflatten(-1, (K, R)) / length(x)).flatten(-2)

def energy(g, h):  # (B, J, K R), (B, J, D) -> (B, J)
    keys = torch.einsum("krd,bjd->bkjr", W_K.to(h), h)
    scores = CAP * torch.tanh(g.unflatten(-1, (K, R)).transpose(1, 2) @ keys.mT / CAP)
    later = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool, device=g.device).triu(1)
    return -TAU * torch.logsumexp((scores / TAU).masked_fill(later, -torch.inf), -1).sum(1)

def parts(q, k):  # the scores' tanh, and the weights, (B, K, J, J)
    t = torch.tanh(q @ k.mT / CAP)
    past = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool, device=q.device).tril()
    return t, torch.softmax((CAP / TAU * t).masked_fill(~past, -torch.inf), -1)

class Capped(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(q, k):  # (B, K, J, R) twice
        t, a = parts(q, k)
        return (a * (1 - t * t)) @ k
    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
    @staticmethod
    def backward(ctx, grad):
        q, k = ctx.saved_tensors
        t, a = parts(q, k)
        slope = 1 - t * t
        pull = grad @ k.mT * slope  # how much each weight matters
        spread = a * (pull - (a * pull).sum(-1, keepdim=True)) / TAU
        ds = slope * spread - 2 / CAP * t * a * pull
        return ds @ k, ds.mT @ q + (a * slope).mT @ grad

def update(x, h):  # (B, J, K R), (B, J, D) -> (B, J, K R)
    queries = norm(x).unflatten(-1, (K, R)).transpose(1, 2)
    keys = torch.einsum("krd,bjd->bkjr", W_K.to(h), h)
    with torch.autocast(x.device.type, enabled=False):
        return STEP * Capped.apply(queries, keys.to(queries)).transpose(1, 2).flatten(-2).to(x.dtype)

mine = energy_layer(
    update=update, energy=energy, state=("J", K * R), memory=("J", D), state_map=norm,
    lagrangian=lagrangian, step_size=STEP, parameters={"W_K": W_K, "gain": GAIN},
)
