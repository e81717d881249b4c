"""The GPU memory that a training needs: a formula, evaluated before anything is built.

A parameter takes 16 bytes: weight, gradient and Adam's two means. The backward pass needs what the forward pass has
kept, which is counted here in numbers per token, as autocast to bfloat16 leaves them: matrix products and their
inputs are narrow (bfloat16); the states and what is normalised are wide (float32). `benchmarks/rehearsal` counts the
same on fake tensors.
"""

from __future__ import annotations

from cemverify.cem.blocked import KEPT_STEPS
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from synthetic.training.looped import LoopedConfig

NARROW, WIDE = 2, 4  # bytes of a number in bfloat16 and in float32
PER_PARAMETER = 16


def activations(config: LoopedConfig, context: int) -> int:
    """Bytes that one window of J = context tokens keeps for its backward pass, in bfloat16 on a GPU.

    It holds for long windows, for which attention keeps no weights. Options that the formula does not know (momentum,
    say) are left out.
    """
    model, block = config.model, config.model.block
    attention, weights_of_attention = _attention(block.attention)
    mlp, weights_of_mlp = _mlp(block.mlp)
    layers = config.attention * attention + config.mlp * mlp
    ends = WIDE * (
        model.vocabulary + 3 * model.dim
    )  # log-probabilities, and the states before and after the last norm
    weights = config.attention * weights_of_attention + config.mlp * weights_of_mlp
    narrowed = NARROW * (model.layers * weights + model.vocabulary * model.dim)  # autocast's copies, also kept
    return round(context * (model.layers * layers + ends) + narrowed)


def _attention(config: AttentionConfig | LlamaAttentionConfig) -> tuple[float, int]:
    """Bytes for each token, and how many weights are narrowed."""
    D, K = config.dim, config.heads
    if isinstance(config, LlamaAttentionConfig):
        fused = 4 * K * -(-D // K // 8) * 8  # queries, keys, values and what was read, padded as for the kernels
        return WIDE * (2 * D + K) + NARROW * (4 * D + fused), 4 * D * D
    T, per_head = config.steps, config.preconditioner.per_head
    if T > KEPT_STEPS:  # only the states are kept
        return WIDE * (1.5 + 2 * T) * D + NARROW * (1.5 + T / 2) * D, K * config.R * D
    narrow = (1.5 + 2.5 * T) * D + 2 * T * K * D if per_head else (1.5 + 3.5 * T) * D
    return WIDE * (1.5 + 3 * T) * D + NARROW * narrow, (2 + T) * K * config.R * D


def _mlp(config: MLPConfig | SwiGLUConfig) -> tuple[float, int]:
    """Bytes for each token, and how many weights are narrowed."""
    D, M = config.dim, config.hidden
    if isinstance(config, SwiGLUConfig):
        return WIDE * 2 * D + NARROW * (2 * D + 4 * M), 3 * D * M
    T = config.steps
    if T > KEPT_STEPS:  # only the states and the gate are kept
        return WIDE * (1.5 + 2 * T) * D + NARROW * ((1.5 + T / 2) * D + M), D * M
    return WIDE * (1.5 + 3 * T) * D + NARROW * ((1.5 + 2.5 * T) * D + (1 + 3 * T) * M), (2 + T) * D * M
