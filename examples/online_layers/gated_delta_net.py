"""A whole Gated DeltaNet layer (Yang et al., arXiv 2412.06464): short convolutions, heads, gated delta rules, a gate.

    R_t = alpha_t S_{t-1},    S_t = R_t - beta_t k_t (R_t^T k_t - v_t)^T,    o_t = S_t^T q_t / sqrt(K)

q, k and v are convolutions of what is projected from the last W tokens, which the state holds, too.

`cemverify check examples.online_layers.gated_delta_net:mine`
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from cemverify import online_layer

D, H, K, V, W = 6, 2, 4, 3, 3
C = 2 * K + V  # q, k and v of a head


class GatedDeltaNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.gate, self.out = (nn.Linear(n, m, bias=False) for n, m in ((D, H * C), (D, H * V), (H * V, D)))
        self.taps, self.rate = nn.Parameter(torch.randn(H * C, W)), nn.Parameter(torch.zeros(H))
        self.sizes, self.norm = nn.Linear(D, 2 * H), nn.RMSNorm(V, eps=1e-6)

    def forward(self, state: Any, x: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:  # x is (B, J, D)
        S, cache = (x.new_zeros(len(x), H, *shape) for shape in ((K, V), (W, C))) if state is None else state
        seen = torch.cat([cache, self.qkv(x).unflatten(-1, (H, C)).transpose(1, 2)], 2)  # (B, H, W + J, C)
        mixed = F.conv1d(seen[:, :, 1:].mT.flatten(1, 2), self.taps[:, None], groups=H * C)
        q, k, v = of_channels(mixed.view(len(x), H, C, -1).mT)  # (B, H, J, K or V)
        beta, alpha = self.step_sizes(x)  # (B, J, H)
        outputs = []
        for t in range(x.shape[1]):
            S = alpha[:, t, :, None, None] * S
            S = S + beta[:, t, :, None, None] * k[:, :, t, :, None] * (v[:, :, t, None] - k[:, :, t, None] @ S)
            outputs.append(q[:, :, t, None] @ S)
        return self.answer(torch.cat(outputs, 2).transpose(1, 2), x), (S, seen[:, :, x.shape[1] :])

    def step_sizes(self, x: Tensor) -> tuple[Tensor, Tensor]:
        beta, decay = self.sizes(x).chunk(2, -1)
        return beta.sigmoid(), (-self.rate.exp() * F.softplus(decay)).exp()

    def answer(self, o: Tensor, x: Tensor) -> Any:  # o is (..., H, V)
        return self.out(self.norm(o).flatten(-2) * F.silu(self.gate(x)))


def of_channels(mixed: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = F.silu(mixed).split_with_sizes((K, K, V), -1)
    q, k = (a * (a.square().sum(-1, keepdim=True) + 1e-6).rsqrt() for a in (q, k))
    return q / K**0.5, k, v


layer, generator = GatedDeltaNet().double(), torch.Generator().manual_seed(0)
for weight in layer.parameters():
    nn.init.normal_(weight, std=0.5, generator=generator)


# what the paper says of one token, of which x is (B, D)
def qkv(cache: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return of_channels(torch.einsum("bhwc,hcw->bhc", cache, layer.taps.view(H, C, W)))


def loss(s: Any, x: Tensor) -> Tensor:  # noqa: ARG001  (the cache ends with what is projected from x)
    _, k, v = qkv(s.cache)
    return ((torch.einsum("bhk,bhkv->bhv", k, s.S) - v) ** 2).sum((-2, -1)) / 2


def retain(s: Any, x: Tensor) -> dict[str, Tensor]:
    projected = layer.qkv(x).view(-1, H, 1, C)
    return {"S": layer.step_sizes(x)[1][..., None, None] * s.S, "cache": torch.cat([s.cache[:, :, 1:], projected], 2)}


mine = online_layer(
    update=layer,
    loss=loss,
    step_size=lambda _, x: layer.step_sizes(x)[0],
    retain=retain,
    gradient_at="retained",
    preconditioner=lambda _, g, x: {"S": g.S, "cache": 0 * g.cache},  # noqa: ARG005  (the cache takes no step)
    read=lambda s, x: layer.answer(torch.einsum("bhk,bhkv->bhv", qkv(s.cache)[0], s.S), x),
    state={"S": (H, K, V), "cache": (H, W, C)},
    tokens={"x": ("J", D)},
    output=("J", D),
    parameters=layer,
    not_offered=("dtype:float32", "dtype:bfloat16"),
)
