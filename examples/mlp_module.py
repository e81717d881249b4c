"""A gated MLP of three linear layers, as it is usually written: `cemverify check examples.mlp_module:mine`.

The contract's weights are copied into the module's own: V into the gate projection and, transposed, into the
down projection, which is the tie; W into the up projection.
"""

from collections.abc import Callable

from torch import Tensor, nn
from torch.nn import functional as F

from cemverify import implementation_from_modules
from cemverify.cem.layers import MLPConfig

SIGMA: dict[str, Callable[[Tensor], Tensor]] = {"silu": F.silu, "gelu": F.gelu, "relu": F.relu}


class GatedMLP(nn.Module):
    def __init__(self, config: MLPConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.dim, bias=False)
        self.sigma = SIGMA[config.activation]

    def forward(self, h: Tensor) -> Tensor:
        down: Tensor = self.down_proj(self.sigma(self.gate_proj(h)) * self.up_proj(h))
        return h + down


mine = implementation_from_modules(
    mlp=GatedMLP,
    names={"V": ("gate_proj.weight", "down_proj.weight.T"), "W": "up_proj.weight"},
    not_offered=(
        # it starts at its own input, takes one step of size one, and has no frills
        *("start", "steps", "step-size", "preconditioner", "norm", "validation"),
        *("activation:gelu-tanh", "activation:relu2", "activation:sigmoid", "activation:tanh"),
        *("activation:softplus", "activation:identity"),
    ),
)
