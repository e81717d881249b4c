"""Llama's own modules from `transformers`, tied: `cemverify check examples.llama_transformers:mine`.

No weights are downloaded: a small configuration is built here, and its modules are called with the contract's
weights. W_Q stands in the query and, transposed, in the output projection; W_K in the key and the value
projection; V in the gate and, transposed, in the down projection; W in the up projection. Then Llama's
attention *is* one step down the interaction energy, and its MLP one step down the element-wise energy.

Rotary angles are set to zero, because Llama rotates keys but not values, which is not a gradient (docs/mathematics.md
§13); biases go in through the additive mask. LlamaRMSNorm computes in float32 whatever it is given, and so norms
are left out. Needs transformers: pip install 'cemverify[transformers]'.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call
from transformers import DynamicCache, LlamaConfig
from transformers.models.llama.modeling_llama import LlamaAttention, LlamaMLP

from cemverify import implementation

ACTIVATIONS = {
    **{name: name for name in ("silu", "gelu", "relu", "relu2", "sigmoid", "tanh")},
    "gelu-tanh": "gelu_pytorch_tanh",
    "identity": "linear",
}


def llama(heads: int = 1, **sizes: Any) -> LlamaConfig:
    # an even head dimension satisfies the check on rotary positions, which are not used
    return LlamaConfig(
        num_hidden_layers=1, num_attention_heads=heads, head_dim=2, attn_implementation="sdpa", **sizes
    )


def tied_attention(weights: Any, config: Any) -> Callable[..., Any]:
    """LlamaAttention with W_Q and W_K in two places each, so that what trains one trains both."""
    W_Q, W_K = (weights[name].flatten(0, 1) for name in ("W_Q", "W_K"))  # (K R, D)
    sizes = llama(config.heads, hidden_size=config.dim)
    sizes.head_dim = config.R
    layer = LlamaAttention(sizes, layer_idx=0)
    layer.scaling = 1 / config.tau
    tied = {"q_proj": W_Q, "o_proj": W_Q.T, "k_proj": W_K, "v_proj": W_K}
    parameters = {f"{name}.weight": weight for name, weight in tied.items()}
    return lambda *arguments, **cache: functional_call(layer, parameters, arguments, cache)


def attention(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:  # noqa: ARG001  (x is h)
    output, _ = tied_attention(weights, config)(h, unturned(h, config), mask(h.shape[1], 0, weights, config, h))
    update: Tensor = config.step_size * output
    return h + update


def decode(h: Tensor, weights: Any, config: Any) -> Tensor:
    """One token at a time, keys and values from Llama's own cache."""
    layer, cache, outputs = tied_attention(weights, config), DynamicCache(), []
    for i in range(h.shape[1]):
        token = h[:, i : i + 1]
        seen = mask(1, i, weights, config, h)
        output, _ = layer(token, unturned(token, config), seen, past_key_values=cache)
        outputs.append(token + config.step_size * output)
    return torch.cat(outputs, dim=1)


def unturned(h: Tensor, config: Any) -> tuple[Tensor, Tensor]:
    """Cosines and sines of no angle, (B, J, R) each."""
    shape = (*h.shape[:2], config.R)
    return h.new_ones(shape), h.new_zeros(shape)


def mask(rows: int, before: int, weights: Any, config: Any, like: Tensor) -> Tensor:
    """What is added to the logits of `rows` tokens that `before` others precede: (1, K, J, S)."""
    i = torch.arange(before, before + rows, device=like.device)[:, None]
    j = torch.arange(before + rows, device=like.device)
    b = like.new_zeros(config.heads, rows, before + rows)
    if config.position == "self-cross":
        own, others = (weights[name][:, None, None] for name in ("to_self", "to_others"))
        b = b + torch.where(i == j, own, others)
    return b.masked_fill(j > i, -math.inf)[None]


def mlp(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:  # noqa: ARG001  (x is h)
    V, W = weights["V"], weights["W"]  # (M, D)
    sigma = ACTIVATIONS[config.activation]
    sizes = llama(hidden_size=config.dim, intermediate_size=config.hidden, hidden_act=sigma)
    tied = {"gate_proj.weight": V, "up_proj.weight": W, "down_proj.weight": V.T}
    update: Tensor = config.step_size * functional_call(LlamaMLP(sizes), tied, (h,))
    return h + update


def block(h: Tensor, weights: Any, config: Any) -> Tensor:
    """Attention, then the MLP, each added to what it reads."""
    for name, layer, own in (("attention", attention, config.attention), ("mlp", mlp, config.mlp)):
        mine = {key.removeprefix(f"{name}."): w for key, w in weights.items() if key.startswith(f"{name}.")}
        h = layer(h, h, mine, own)
    return h


mine = implementation(
    attention=attention,
    mlp=mlp,
    block=block,
    decode=decode,
    not_offered=(
        # it starts at its own input and takes one step
        *("start", "steps", "head-dim", "diagonal", "position:alibi", "position:rotary", "preconditioner", "norm"),
        *("activation:softplus", "validation"),
    ),
)
