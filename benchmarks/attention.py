"""Attention, forward and backward: CEM's kinds against four linear maps and torch's fused attention."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from typing import Any, Literal

import torch

from benchmarks.budget import Met, error_budget
from benchmarks.measuring import MOVED, Timing, both_ways, gigabytes, in_turn, moved, seeded
from cemverify.cem import blocked
from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMLayer, DiagonalKind, PositionKind
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig
from cemverify.results.envelope import Table
from cemverify.results.numbers import shown_ratio
from cemverify.results.statistics import paired_ratio


@dataclass(frozen=True)
class Kind:
    """One kind of CEM attention."""

    name: str
    steps: int = 1
    diagonal: DiagonalKind = "none"
    position: PositionKind = "none"

    def config(self, dim: int, heads: int) -> AttentionConfig:
        """The configuration of a layer of this kind and of a given width."""
        return AttentionConfig(
            dim, heads, diagonal=self.diagonal, position=self.position, steps=self.steps, init_std=dim**-0.5
        )


def kinds(depths: Sequence[int]) -> list[Kind]:
    """At each T: plain, with ALiBi, with the shared diagonal and ALiBi, with a diagonal per head."""
    return [
        kind
        for T in depths
        for kind in (
            Kind(f"T={T}", T),
            Kind(f"T={T}, ALiBi", T, position="alibi"),
            Kind(f"T={T}, shared diagonal, ALiBi", T, "shared", "alibi"),
            Kind(f"T={T}, diagonal per head", T, "per-head"),
        )
    ]


@dataclass(frozen=True)
class Shape:
    """B sequences of J tokens of width D with K heads."""

    batch: int
    tokens: int
    dim: int
    heads: int


BASELINE = "MHA"
FEW = 256  # tokens on which error budgets are measured: the fewest for which a layer does not take the formula
Way = blocked.Path | Literal["by size"]  # a path, or the layer's own choice


def flops(kind: Kind | None, shape: Shape) -> float:
    """FLOPs of a forward pass per token; causal attention counts as half (docs/mathematics.md §14); None is MHA."""
    D, K, n = shape.dim, shape.heads, (shape.tokens + 1) / 2
    if kind is None:
        return 8 * D * D + 4 * n * D
    T = kind.steps
    total = 2 * D * D + T * (4 * D * D + 4 * n * D)
    if kind.diagonal == "shared":
        total += T * (D + 2 * D * n + n * K) + T * (n * K + 2 * n * D + 2 * D)
    if kind.diagonal == "per-head":
        total += T * K * (D + 2 * D * n + n) + T * K * (2 * n * D + 2 * D)
    return total


@dataclass(frozen=True)
class Row:
    """The measurements of one kind by one path."""

    shape: Shape
    kind: Kind
    path: Way
    timing: Timing
    baseline: Timing
    budget: Met

    @property
    def flop_ratio(self) -> float:
        """The ratio of its FLOPs to the baseline's."""
        return flops(self.kind, self.shape) / flops(None, self.shape)


def measure(
    shape: Shape,
    chosen: Sequence[Kind],
    *,
    device: str,
    dtype: torch.dtype,
    paths: Sequence[Way],
    rounds: int,
    seconds: float,
) -> list[Row]:
    """Times each kind by each path, in turn with the baseline."""
    h = torch.randn(shape.batch, shape.tokens, shape.dim, generator=seeded())
    h = h.to(device, dtype)
    mha = LlamaAttention(LlamaAttentionConfig(shape.dim, shape.heads, "none", init_std=shape.dim**-0.5), seeded())
    layers = {kind: _layer(kind, shape).to(device, dtype) for kind in chosen}
    small = replace(shape, batch=1, tokens=min(FEW, shape.tokens))
    budgets = {(kind, path): _met(kind, path, small, device, dtype) for kind in chosen for path in paths}
    tasks = {BASELINE: both_ways(mha.to(device, dtype), h)}
    for kind, layer in layers.items():
        for path in paths:
            task = both_ways(layer, h)
            tasks[f"{kind.name} {path}"] = task if path == "by size" else blocked.using(path)(task)
    timings = in_turn(tasks, device, rounds, seconds)
    return [
        Row(shape, kind, path, timings[f"{kind.name} {path}"], timings[BASELINE], budgets[kind, path])
        for kind in chosen
        for path in paths
    ]


@cache
def _met(kind: Kind, path: Way, shape: Shape, device: str, dtype: torch.dtype) -> Met:
    """How a path meets its error budget, measured once in a process."""
    h = torch.randn(shape.batch, shape.tokens, shape.dim, generator=seeded()).to(device, dtype)
    return error_budget(_layer(kind, shape).to(device, dtype), h, None if path == "by size" else path)


def table(title: str, rows: Sequence[Row], traffic: Sequence[Mapping[str, Any]] | None = None) -> Table:
    """One line for each kind and path; a path that misses its error budget gets no time.

    Args:
        traffic: the memory traffic of some rows (`benchmarks.rehearsal.traffic`), for two more columns.
    """
    columns = (
        *("tokens", "attention", "path", "time / MHA", "FLOPs / MHA", "time / FLOPs"),
        *("peak GB", "MHA's", "error / budget"),
    )
    if traffic is None:
        return Table(title, columns, [_cells(row) for row in rows])
    counted = {(t["attention"], t["path"], t["tokens"]): t for t in traffic}
    found = [counted.get((row.kind.name, row.path, row.shape.tokens)) for row in rows]
    cells = [[*_cells(row), *moved(of, row.timing.seconds, 1)] for row, of in zip(rows, found, strict=True)]
    return Table(title, (*columns, *MOVED), cells)


def _cells(row: Row) -> list[Any]:
    failure = row.timing.failure or (row.baseline.failure and f"MHA: {row.baseline.failure}")
    memory = [gigabytes(row.timing.peak), gigabytes(row.baseline.peak)]
    if not row.budget.holds:
        failure, memory = f"error budget missed: {row.budget.name}", ["", ""]
    time, quotient = failure, ""
    if not failure:
        measured = paired_ratio(row.timing.seconds, row.baseline.seconds)  # of the same rounds
        time, quotient = shown_ratio(measured, 2), f"{measured.mean / row.flop_ratio:.2f}"
    own = [f"{row.shape.tokens:,}", row.kind.name, row.path]
    return [*own, time, f"{row.flop_ratio:.2f}", quotient, *memory, f"{row.budget.margin:.2f}"]


def as_json(rows: Sequence[Row]) -> list[Mapping[str, Any]]:
    """The measurements for a result file."""
    return [
        {
            **asdict(row.shape),
            "attention": row.kind.name,
            "path": row.path,
            "seconds": list(row.timing.seconds),
            "baseline_seconds": list(row.baseline.seconds),
            "flop_ratio": row.flop_ratio,
            "flops": flops(row.kind, row.shape),
            "baseline_flops": flops(None, row.shape),
            "peak_bytes": row.timing.peak,
            "baseline_peak_bytes": row.baseline.peak,
            "failure": row.timing.failure,
            "error_over_budget": row.budget.margin,
        }
        for row in rows
    ]


def _layer(kind: Kind, shape: Shape) -> CEMLayer:
    layer = CEMAttention(kind.config(shape.dim, shape.heads), seeded())
    if layer.diagonal is not None:
        with torch.no_grad():
            layer.diagonal.copy_(0.03 * torch.randn(layer.diagonal.shape, generator=seeded()))
    return layer
