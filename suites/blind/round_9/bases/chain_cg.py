"""A signal smoothed along a chain with gaps: the equilibrium of a quadratic energy, by conjugate gradients and back by them."""

import torch

from cemverify import energy_layer
D, ITERATIONS = 4, 40
_draw = torch.Generator().manual_seed(51)
STIFFNESS = 0.1 + 0.3 * torch.rand(D, generator=_draw, dtype=torch.float64)  # of each channel, learned

def _valid(x, mask):  # (B, J, 1)
    return torch.ones_like(x[..., :1]) if mask is None else mask.to(x.dtype).unsqueeze(-1)

def energy(g, m, mask=None):  # (B, J, D), (B, J, D), (B, J) -> (B,)
    v = _valid(g, mask)
    bends = (v[:, 1:] * v[:, :-1] * STIFFNESS.to(g) * (g[:, 1:] - g[:, :-1]).square()).sum((1, 2))
    return 0.5 * (bends + (v * (g - m).square()).sum((1, 2)))

def laplacian(v, x):  # (B, J, 1), (B, J, D) -> (B, J, D)
    flow = v[:, 1:] * v[:, :-1] * (x[:, 1:] - x[:, :-1])
    flow = torch.nn.functional.pad(flow, (0, 0, 1, 1))
    return flow[:, :-1] - flow[:, 1:]

def conjugate_gradients(v, k, b, x):  # solves x + k L x = b in each channel
    tiny = torch.finfo(b.dtype).tiny
    r = b - x - k * laplacian(v, x)
    p, rr = r, (r * r).sum(1, keepdim=True)
    for _ in range(ITERATIONS):
        q = p + k * laplacian(v, p)
        a = rr / (p * q).sum(1, keepdim=True).clamp_min(tiny)
        x, r = x + a * p, r - a * q
        before, rr = rr, (r * r).sum(1, keepdim=True)
        p = r + rr / before.clamp_min(tiny) * p
    return x

class Smooth(torch.autograd.Function):
    generate_vmap_rule = True
    @staticmethod
    def forward(v, k, b, x):
        return conjugate_gradients(v, k, b, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], inputs[1], output)

    @staticmethod
    def backward(ctx, grad):
        v, k, x = ctx.saved_tensors
        y = conjugate_gradients(v, k, grad, torch.zeros_like(grad))
        return None, -(y * laplacian(v, x)).sum((0, 1)), y, torch.zeros_like(y)

def update(x, m, mask=None):  # (B, J, D), (B, J, D), (B, J) -> (B, J, D)
    wide = torch.promote_types(x.dtype, torch.float32)
    v = _valid(x.to(wide), mask)
    return Smooth.apply(v, STIFFNESS.to(v), v * m.to(wide), v * x.to(wide)).to(x.dtype)

mine = energy_layer(
    update=update, energy=energy, dim=D, energy_per="sequence", coupled=True, masked=True,
    step="equilibrium", tolerance=1e-9, returns="next state", parameters={"stiffness": STIFFNESS},
    not_offered=("compile",),  # it takes two minutes
)
