"""MLPs and blocks, forward and backward, against Llama's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from typing import Any

import torch
from torch import nn

from benchmarks.measuring import Timing, both_ways, causal_flops, in_turn, ratio, seeded, show_ratio
from cemverify.cem import blocked
from cemverify.cem.layers import AttentionConfig, CEMGatedMLP, MLPConfig, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLU, SwiGLUConfig
from cemverify.cem.models import Block, BlockConfig
from cemverify.results.envelope import Table
from synthetic.flops import matmul_flops

COLUMNS = ("layer", "time / Llama's", "FLOPs / Llama's", "time / FLOPs")


def mlps(dim: int, hidden: int, tokens: int, depths: Sequence[int], rounds: int, seconds: float) -> tuple[Table, Any]:
    """CEM's MLP at each T against the gated MLP of Llama of equal width."""
    contenders: dict[str, nn.Module] = {"Llama": SwiGLU(SwiGLUConfig(dim, hidden), seeded())}
    contenders |= {f"CEM T={T}": CEMGatedMLP(MLPConfig(dim, hidden, steps=T), seeded()) for T in depths}
    return _compare(f"MLP, D = {dim}, M = {hidden}, {tokens:,} tokens", contenders, dim, tokens, rounds, seconds)


def blocks(
    dim: int, heads: int, hidden: int, tokens: int, depths: Sequence[int], rounds: int, seconds: float
) -> tuple[Table, Any]:
    """CEM's block at each T, with a shared diagonal, ALiBi and diagonal preconditioners, against Llama's."""
    llama = BlockConfig(LlamaAttentionConfig(dim, heads), SwiGLUConfig(dim, hidden))
    contenders: dict[str, nn.Module] = {"Llama": Block(llama, seeded())}
    contenders |= {f"CEM T={T}": Block(cem_block(dim, heads, hidden, T), seeded()) for T in depths}
    title = f"Block, D = {dim}, K = {heads}, M = {hidden}, {tokens:,} tokens"
    return _compare(title, contenders, dim, tokens, rounds, seconds)


def cem_block(dim: int, heads: int, hidden: int, steps: int) -> BlockConfig:
    """A CEM block with a shared diagonal, ALiBi, gains per channel and diagonal preconditioners."""
    diagonal = PreconditionerConfig("diagonal")
    attention = AttentionConfig(
        dim, heads, diagonal="shared", position="alibi", preconditioner=diagonal, steps=steps, norm="channel"
    )
    return BlockConfig(attention, MLPConfig(dim, hidden, preconditioner=diagonal, steps=steps, norm="channel"))


def _compare(
    title: str, contenders: Mapping[str, nn.Module], dim: int, tokens: int, rounds: int, seconds: float
) -> tuple[Table, Any]:
    h = torch.randn(1, tokens, dim, generator=seeded())
    flops = {name: _flops(module, dim, tokens) for name, module in contenders.items()}
    timings = in_turn({name: both_ways(module, h) for name, module in contenders.items()}, "cpu", rounds, seconds)
    rows = [_row(name, timings, flops) for name in contenders if name != "Llama"]
    data = [
        {"layer": name, "seconds": list(timings[name].seconds), "flops": flops[name], "tokens": tokens}
        for name in contenders
    ]
    return Table(f"{title}: forward and backward", COLUMNS, rows), data


def _row(name: str, timings: Mapping[str, Timing], flops: Mapping[str, float]) -> list[Any]:
    measured, expected = ratio(timings[name], timings["Llama"]), flops[name] / flops["Llama"]
    return [name, show_ratio(measured), f"{expected:.2f}", f"{measured.mean / expected:.2f}"]


def _flops(module: nn.Module, dim: int, tokens: int) -> float:
    """Of a forward pass per token, attention on half of all pairs."""

    # on the meta device, since torch does not count the fused attention of a CPU
    copy = deepcopy(module).to("meta")

    def counted(J: int) -> float:
        with blocked.using("formula"):
            return matmul_flops(copy, torch.zeros(1, J, dim, device="meta")) / J

    return causal_flops(counted, tokens)
