"""What attention keeps for the backward pass: bytes, counted once for each piece of memory that autograd holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cemverify.cem import blocked
from cemverify.cem.layers import AttentionConfig, CEMAttention
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig
from cemverify.results.envelope import Table


def saved_bytes(module: nn.Module, call: Callable[[Tensor], Tensor], h: Tensor) -> int:
    """Bytes that autograd keeps from a forward pass of h until the backward pass, but for the module's parameters.

    On the meta device nothing is computed, and the same is counted.
    """
    held: dict[int, Tensor] = {}

    def note(tensor: Tensor) -> Tensor:
        # the tensor is held too, or its address would be given to the next one
        held[tensor.untyped_storage()._cdata] = tensor
        return tensor

    parameters = {parameter.untyped_storage()._cdata for parameter in module.parameters()}
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        output = call(h.detach().requires_grad_())
    del output
    return sum(t.untyped_storage().nbytes() for key, t in held.items() if key not in parameters)


def full(dim: int, heads: int, steps: int) -> AttentionConfig:
    """CEM attention with a shared diagonal and ALiBi."""
    return AttentionConfig(dim, heads, diagonal="shared", position="alibi", steps=steps)


def table(lengths: Sequence[int], depths: Sequence[int], dim: int, heads: int) -> tuple[Table, list[dict[str, Any]]]:
    """Megabytes at each length: MHA with fused attention, CEM by the path that it takes, and by the formula."""
    contenders: list[tuple[str, int | None, blocked.Path | None]] = [("MHA, fused attention", None, None)]
    contenders += [(f"T={T}, by size", T, None) for T in depths]
    contenders += [(f"T={T}, formula", T, "formula") for T in depths]
    sizes = {name: [_bytes(J, dim, heads, steps, path) for J in lengths] for name, steps, path in contenders}
    reference = sizes[contenders[0][0]][-1]
    rows = [[name, *(f"{b / 1e6:,.1f}" for b in own), f"{own[-1] / reference:.1f}"] for name, own in sizes.items()]
    data = [{"attention": name, "tokens": list(lengths), "bytes": own} for name, own in sizes.items()]
    title = f"MB kept for the backward pass, one sequence, D = {dim}, K = {heads}, shared diagonal and ALiBi, float32"
    columns = ["attention", *(f"J = {J:,}" for J in lengths), "times MHA's at the longest"]
    return Table(title, columns, rows), data


def _bytes(tokens: int, dim: int, heads: int, steps: int | None, path: blocked.Path | None) -> int:
    generator = torch.Generator().manual_seed(0)
    if steps is None:
        mha = LlamaAttention(LlamaAttentionConfig(dim, heads, "none"), generator)
        return saved_bytes(mha, lambda x: mha(x)[0], torch.randn(1, tokens, dim, generator=generator))
    # the formula may not fit, and is only counted; the fast paths are really taken
    with torch.device("meta" if path == "formula" else "cpu"):
        layer = CEMAttention(full(dim, heads, steps), generator)
        h = torch.zeros(1, tokens, dim)
    return saved_bytes(layer, layer, h)
