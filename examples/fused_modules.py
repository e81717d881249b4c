"""Modules with several weights in one parameter, sliced by `names`: `cemverify check examples.fused_modules:mine`.

Keys and values get the same numbers, so that a split that exchanges them cannot be seen. It can be where the layer is
compared with a plain form of it, `energy_layer(reference=...)` (docs/how-to/modules.md).
"""

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from cemverify import implementation_from_modules
from cemverify.cem.layers import AttentionConfig, MLPConfig


class Attention(nn.Module):
    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.shape = (3, config.heads, -1)
        self.qkv_proj = nn.Linear(config.dim, 3 * config.dim, bias=False)
        self.o_proj = nn.Linear(config.dim, config.dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv_proj(h).unflatten(-1, self.shape).permute(2, 0, 3, 1, 4)  # (B, K, J, R) each
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        output: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return h + output


class MLP(nn.Module):
    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.gate_up_proj = nn.Linear(config.dim, 2 * config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        gate, up = self.gate_up_proj(h).chunk(2, dim=-1)
        down: Tensor = self.down_proj(F.silu(gate) * up)
        return h + down


def block(config: Any) -> nn.Module:
    return nn.Sequential(OrderedDict(attention=Attention(config.attention), mlp=MLP(config.mlp)))


others = "gelu", "gelu-tanh", "relu", "relu2", "sigmoid", "tanh", "softplus", "identity"
names: dict[str, str | tuple[str, ...]] = {
    "W_Q": ("qkv_proj.weight[:D]", "o_proj.weight.T"),
    "W_K": ("qkv_proj.weight[D:2*D]", "qkv_proj.weight[2*D:]"),
    "V": ("gate_up_proj.weight[:M]", "down_proj.weight.T"),
    "W": "gate_up_proj.weight[M:]",
    "attention.W_Q": ("attention.qkv_proj.weight[:D]", "attention.o_proj.weight.T"),
    "attention.W_K": ("attention.qkv_proj.weight[D:2*D]", "attention.qkv_proj.weight[2*D:]"),
    "mlp.V": ("mlp.gate_up_proj.weight[:M]", "mlp.down_proj.weight.T"),
    "mlp.W": "mlp.gate_up_proj.weight[M:]",
}
absent = [*("start", "steps", "step-size", "temperature", "head-dim"), *(f"activation:{name}" for name in others)]
absent += ["diagonal", "position", "preconditioner", "norm", "validation"]
mine = implementation_from_modules(attention=Attention, mlp=MLP, block=block, names=names, not_offered=absent)
