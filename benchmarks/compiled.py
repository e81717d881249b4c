"""What compilers make of the layers on a CPU: torch.compile, and FlexAttention."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.measuring import both_ways, in_turn, ratio, seeded, show_ratio
from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, MLPConfig
from cemverify.results.envelope import Table

TOKENS = 1024


def table(dim: int, heads: int, hidden: int, rounds: int, seconds: float) -> tuple[Table, Any]:
    """Layers through torch.compile against the same as they are, then ALiBi by FlexAttention, forward alone."""
    layers: dict[str, nn.Module] = {}
    for T in (1, 2, 4):
        config = AttentionConfig(dim, heads, diagonal="shared", position="alibi", steps=T)
        layers[f"attention T={T}, forward and backward"] = CEMAttention(config, seeded())
        layers[f"MLP T={T}, forward and backward"] = CEMGatedMLP(MLPConfig(dim, hidden, steps=T), seeded())
    rows, data = [], []
    share = seconds / (len(layers) + 1)
    for name, (tasks, off) in (*_compiled(layers, dim), ("ALiBi by FlexAttention, forward", _flexed(dim, heads))):
        timings = in_turn(tasks, "cpu", rounds, share)
        rows.append([name, show_ratio(ratio(timings["compiled"], timings["as it is"])), f"{off:.0e}"])
        data.append({"what": name, "seconds": {way: list(timings[way].seconds) for way in tasks}, "off": off})
    columns = ("what", "time compiled / as it is", "largest difference / largest value")
    return Table(f"Compilers, {TOKENS:,} tokens, D = {dim}, K = {heads}, M = {hidden}", columns, rows), data


Compared = tuple[Mapping[str, Callable[[], object]], float]


def _compiled(layers: Mapping[str, nn.Module], dim: int) -> Iterator[tuple[str, Compared]]:
    h = torch.randn(1, TOKENS, dim, generator=seeded())
    for name, layer in layers.items():
        copy = deepcopy(layer)
        copy.compile()
        actual, expected = _gradient(copy, h), _gradient(layer, h)
        tasks = {"as it is": both_ways(layer, h), "compiled": both_ways(copy, h)}
        yield name, (tasks, _apart(actual, expected))


def _flexed(dim: int, heads: int) -> Compared:
    """Against the fused attention with ALiBi as a mask: (1, K, J, R) of each."""
    q, k = (torch.randn(1, heads, TOKENS, dim // heads, generator=seeded()) for _ in range(2))
    slopes = 2.0 ** -torch.arange(1, heads + 1)
    distance = torch.arange(TOKENS)[:, None] - torch.arange(TOKENS)  # (J, J)
    mask = (-slopes[:, None, None] * distance).masked_fill(distance < 0, float("-inf"))[None]
    causal = create_block_mask(lambda _b, _k, i, j: i >= j, None, None, TOKENS, TOKENS, device="cpu")
    flex: Any = torch.compile(flex_attention)

    def biased(score: Tensor, _: Tensor, head: Tensor, i: Tensor, j: Tensor) -> Tensor:
        return score - slopes[head] * (i - j)

    def flexed() -> Tensor:
        attended: Tensor = flex(q, k, k, score_mod=biased, block_mask=causal)
        return attended

    def masked() -> Tensor:
        return scaled_dot_product_attention(q, k, k, attn_mask=mask)

    return {"as it is": masked, "compiled": flexed}, _apart(flexed(), masked())


def _apart(actual: Tensor, expected: Tensor) -> float:
    return float((actual - expected).abs().max() / expected.abs().max())


def _gradient(layer: nn.Module, h: Tensor) -> Tensor:
    state = h.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(layer(state).square().sum(), state)
    return gradient
