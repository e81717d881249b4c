"""Llama-style attention of four linear layers, tied by copying: `cemverify check examples.attention_module:mine`.

The contract's W_Q goes into the query projection and, transposed, into the output projection; W_K into the key and
the value projection. A weight is reshaped to its parameter: W_Q (K, R, D) fits a linear layer's (K R, D).
"""

from torch import Tensor, nn
from torch.nn import functional as F

from cemverify import implementation_from_modules
from cemverify.cem.layers import AttentionConfig


class Attention(nn.Module):
    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.q_proj, self.k_proj, self.v_proj, self.o_proj = (
            nn.Linear(config.dim, config.dim, bias=False) for _ in range(4)
        )

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = (
            p(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for p in (self.q_proj, self.k_proj, self.v_proj)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, K, J, R)
        output: Tensor = self.o_proj(attended.transpose(1, 2).flatten(2))
        return h + output


mine = implementation_from_modules(
    attention=Attention,
    names={"W_Q": ("q_proj.weight", "o_proj.weight.T"), "W_K": ("k_proj.weight", "v_proj.weight")},
    not_offered=(
        # it starts at its own input, takes one step of size one at the usual temperature, and has no options
        *("start", "steps", "step-size", "temperature", "head-dim"),
        *("diagonal", "position", "preconditioner", "norm", "validation"),
    ),
)
