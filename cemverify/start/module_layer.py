"""nn.Modules as layers for the verifier: `cemverify check module_layer:mine`.

This file is correct as it stands. Import your own modules instead of these two, and say in `names` where each of the
contract's weights goes.

B batch, J tokens, D model dimension, K heads, R = D / K head dimension, M hidden units.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from cemverify import implementation_from_modules
from cemverify.cem.layers import AttentionConfig, MLPConfig


class Attention(nn.Module):
    """Four linear layers, of which two pairs are tied."""

    def __init__(self, config: AttentionConfig) -> None:
        super().__init__()
        self.heads, D = config.heads, config.dim
        self.query, self.key, self.value, self.output = (nn.Linear(D, D, bias=False) for _ in range(4))

    def forward(self, h: Tensor) -> Tensor:
        """(B, J, D) -> (B, J, D)."""
        q, k, v = (f(h).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.query, self.key, self.value))
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)  # (B, K, J, R)
        update: Tensor = self.output(attended.transpose(1, 2).flatten(2))
        return h + update


class MLP(nn.Module):
    """Three linear layers, of which the first and the last are tied."""

    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.gate = nn.Linear(config.dim, config.hidden, bias=False)
        self.up = nn.Linear(config.dim, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """(B, J, D) -> (B, J, D)."""
        update: Tensor = self.down(F.silu(self.gate(h)) * self.up(h))
        return h + update


# The features that these modules lack. Delete what yours have: everything that is not named here is tested.
# `cemverify list --features` explains the names.
absent = (
    *("start", "steps", "step-size", "temperature", "head-dim"),
    *("diagonal", "position", "preconditioner", "norm", "validation"),
    *("activation:gelu", "activation:gelu-tanh", "activation:relu", "activation:relu2", "activation:sigmoid"),
    *("activation:tanh", "activation:softplus", "activation:identity"),
)
mine = implementation_from_modules(
    attention=Attention,
    mlp=MLP,
    names={
        "W_Q": ("query.weight", "output.weight.T"),  # (K, R, D), reshaped to (D, D)
        "W_K": ("key.weight", "value.weight"),
        "V": ("gate.weight", "down.weight.T"),  # (M, D)
        "W": "up.weight",
    },
    not_offered=absent,
)
