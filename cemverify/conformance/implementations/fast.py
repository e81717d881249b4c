"""The fast paths as an implementation of the contract: what a layer does on many tokens, here on any number.

Blocks and tiles are so small that the cases of the catalogue, which have few tokens, cross their edges.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor

from cemverify.cem import blocked
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.implementations import reference as formula
from cemverify.conformance.implementations.contract import implementation
from cemverify.conformance.implementations.reference import Weights

# neither divides the other, nor most numbers of tokens
ROWS, TILE = 5, 2


def _as_for_many(steps: int) -> AbstractContextManager[None]:
    """The path that a layer of T steps takes on many tokens; by tiles where our kernels cannot go."""
    return blocked.using("rows" if steps <= blocked.KEPT_STEPS else "blocks", rows=ROWS, tile=TILE)


def attention(x: Tensor, h: Tensor, weights: Weights, config: AttentionConfig) -> Tensor:
    """x^(T) by rows or tiles, beyond two steps by blocks too: (B, J, D)."""
    fused = x.device.type in blocked.FUSED_ON and config.diagonal == "none" and config.position in ("none", "rotary")
    by_all = config.steps > blocked.KEPT_STEPS and fused  # where torch's own attention takes all tokens at once
    with blocked.using("blocks") if by_all else _as_for_many(config.steps):
        return formula.attention(x, h, weights, config)


def mlp(x: Tensor, h: Tensor, weights: Weights, config: MLPConfig) -> Tensor:
    """x^(T) by blocks, (B, J, D)."""
    with blocked.using("blocks", rows=ROWS, tile=TILE):
        return formula.mlp(x, h, weights, config)


def block(h: Tensor, weights: Weights, config: BlockConfig) -> Tensor:
    """The pre-norm block, each half by its path: (B, J, D)."""
    with _as_for_many(config.attention.steps if isinstance(config.attention, AttentionConfig) else 1):
        return formula.block(h, weights, config)


def decode(h: Tensor, weights: Weights, config: AttentionConfig) -> Tensor:
    """Attention of h on itself, token by token from a cache, each by rows or tiles: (B, J, D)."""
    with _as_for_many(config.steps):
        return formula.decode(h, weights, config)


def prefill(h: Tensor, cache: Any, weights: Weights, config: AttentionConfig) -> tuple[Tensor, Any]:
    """Attention of h after the tokens in the cache, by tiles: (B, J, D), and the cache."""
    with _as_for_many(config.steps):
        return formula.prefill(h, cache, weights, config)


fast = implementation(
    attention=attention,
    mlp=mlp,
    block=block,
    decode=decode,
    prefill=prefill,
    not_offered=("attention_energy", "mlp_energy"),
)
