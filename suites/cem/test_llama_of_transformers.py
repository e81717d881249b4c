"""The Llama that CEM is compared with is Llama: the model of transformers with the same weights agrees.

Theirs computes norms and angles in float32 even in a float64 model; this sets the tolerance.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModel, LanguageModelConfig
from suites.cem.helpers import generator, relative_error

D, K, M, L, V, J = 24, 3, 40, 2, 50, 12
U32 = 2.0**-24

# Relative errors in float32: a norm about 4 u, an angle at position j about j u. Five norms and the angles of two
# layers add up to (5 * 4 + 2 * J) u to first order; a factor of four covers propagation through the model.
ROUNDING = 4 * (5 * 4 + 2 * J) * U32


def ours() -> LanguageModel:
    """Embeddings so small that the epsilon in the first norm matters, and weights so large that all else does."""
    block = BlockConfig(LlamaAttentionConfig(D, K, init_std=0.3), SwiGLUConfig(D, M, init_std=0.3))
    model = LanguageModel(LanguageModelConfig(V, L, block), generator(0)).double()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gain"):
                parameter.copy_(torch.rand(D, generator=generator(1), dtype=torch.float64) + 0.5)
    return model


def theirs() -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    config = transformers.LlamaConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=M,
        num_hidden_layers=L,
        num_attention_heads=K,
        rms_norm_eps=1e-5,
        max_position_embeddings=J,
        attn_implementation="sdpa",
        use_cache=False,
    )
    return transformers.LlamaForCausalLM(config).double()


def ported(named: dict[str, Tensor]) -> dict[str, Tensor]:
    """Our parameters, or their gradients, with the names and shapes of transformers."""
    out = {"model.embed_tokens.weight": named["embedding"], "model.norm.weight": named["norm.gain"]}
    out["lm_head.weight"] = named["head"]
    for i in range(L):
        layer = {name.removeprefix(f"blocks.{i}."): a for name, a in named.items() if name.startswith(f"blocks.{i}.")}
        own = {
            "input_layernorm": layer["attention.norm.gain"],
            "post_attention_layernorm": layer["mlp.norm.gain"],
            **{f"self_attn.{w}_proj": layer[f"attention.W_{w.upper()}"].flatten(0, 1) for w in "qkv"},
            "self_attn.o_proj": layer["attention.W_O"].flatten(0, 1).T,
            **{f"mlp.{w}_proj": layer[f"mlp.{w}"] for w in ("gate", "up", "down")},
        }
        out |= {f"model.layers.{i}.{name}.weight": array for name, array in own.items()}
    return out


def test_with_the_same_weights_logits_and_gradients_are_those_of_transformers() -> None:
    model, llama = ours(), theirs()
    # raises if any is missing
    llama.load_state_dict(ported({name: p.detach() for name, p in model.named_parameters()}))
    tokens = torch.randint(V, (2, J), generator=generator(2))
    logits, expected = model(tokens), llama(tokens).logits
    assert relative_error(logits, expected) <= ROUNDING

    def gradients_of(answer: Tensor, parameters: dict[str, Tensor]) -> dict[str, Tensor]:
        loss = F.cross_entropy(answer[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())
        return dict(zip(parameters, torch.autograd.grad(loss, list(parameters.values())), strict=True))

    gradients = ported(gradients_of(logits, dict(model.named_parameters())))
    for name, gradient in gradients_of(expected, dict(llama.named_parameters())).items():
        assert relative_error(gradients[name], gradient) <= ROUNDING, name
