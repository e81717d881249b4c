"""All CPU benchmarks, with their result file, page and picture."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch

from benchmarks import attention, decoding, training
from benchmarks.attention import Row, Shape
from benchmarks.measuring import Findings
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, LlamaPositionKind, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModelConfig
from cemverify.processes.cores import on_one_thread
from cemverify.results import envelope
from cemverify.results.provenance import Maker
from cemverify.results.statistics import paired_ratio
from cemverify.results.tables import markdown
from synthetic.figures.drawing import Picture
from synthetic.training.machine import peak_flops

DIM, HEADS, HIDDEN = 256, 4, 688
LENGTHS = ((4, 512), (2, 1024), (1, 2048))  # batch and tokens


@dataclass(frozen=True)
class Benchmark:
    """One benchmark."""

    name: str
    run: Callable[[float], Findings]  # takes its time limit in seconds
    share: float  # of the total time


def attend(seconds: float) -> Findings:
    """Every kind of attention at three lengths, by the path that its layer takes."""
    shapes = [Shape(batch, tokens, DIM, HEADS) for batch, tokens in LENGTHS]
    rows: list[Row] = []
    started = time.monotonic()
    for i, shape in enumerate(shapes):
        left = seconds - (time.monotonic() - started)
        rows += attention.measure(
            shape,
            attention.kinds((1, 2, 4, 8)),
            device="cpu",
            dtype=torch.float32,
            paths=("by size",),
            rounds=7,
            seconds=left / (len(shapes) - i),
        )
    title = f"Attention, forward and backward, against four linear maps and fused attention, D = {DIM}, K = {HEADS}"
    speed = peak_flops("cpu", "float32")
    return Findings([attention.table(title, rows)], {"rows": attention.as_json(rows), "peak_flops": speed})


def language_step(_seconds: float) -> Findings:
    """A training step of a small language model, and its peak memory."""
    contenders = [training.Contender("Llama", _language_model(None))]
    contenders += [training.Contender(f"CEM T={T}", _language_model(T)) for T in (1, 2, 8)]
    contenders.append(training.Contender("CEM T=2", _language_model(2), "formula"))
    steps = [training.apart(c, batch=1, context=2048, steps=1, seconds=8.0) for c in contenders]
    speed = peak_flops("cpu", "float32")
    title = "A step of training, D = 256, 4 layers, one thread, float32"
    return Findings([training.table(title, steps, speed)], {"language": training.as_json(steps), "peak_flops": speed})


def decode(seconds: float) -> Findings:
    """Decoding against Llama, at growing contexts."""
    models = {"Llama": _language_model(None, "none")}
    for T in (1, 2):
        models[f"CEM T={T}, no diagonal"] = training.without_diagonal(_language_model(T))
        models[f"CEM T={T}"] = _language_model(T)
    contexts = (1024, 4096, 16384)
    rows = decoding.measure(
        models,
        contexts=contexts,
        batch=1,
        device="cpu",
        dtype=torch.float32,
        rounds=30,
        seconds=seconds / len(contexts) / 2,
    )
    title = "Decoding one token at a time, D = 256, 4 layers, one thread, float32"
    return Findings([decoding.table(title, rows)], {"decoding": list(map(asdict, rows))})


BENCHMARKS: Sequence[Benchmark] = (
    Benchmark("attention", attend, 0.7),
    Benchmark("language-step", language_step, 0.2),
    Benchmark("decoding", decode, 0.1),
)


def _language_model(steps: int | None, position: LlamaPositionKind = "rotary") -> LanguageModelConfig:
    """Llama for None; CEM has a shared diagonal, ALiBi, gains per channel and diagonal preconditioners."""
    if steps is None:
        return LanguageModelConfig(
            256, 4, BlockConfig(LlamaAttentionConfig(DIM, HEADS, position), SwiGLUConfig(DIM, HIDDEN))
        )
    shared: dict[str, Any] = {"preconditioner": PreconditionerConfig("diagonal"), "steps": steps, "norm": "channel"}
    attention = AttentionConfig(DIM, HEADS, diagonal="shared", position="alibi", **shared)
    return LanguageModelConfig(256, 4, BlockConfig(attention, MLPConfig(DIM, HIDDEN, **shared)))


def run(names: Sequence[str], seconds: float, maker: Maker, say: Callable[[str], None]) -> dict[str, Any]:
    """The result of the benchmarks with these names, which share the seconds."""
    chosen = [b for b in BENCHMARKS if b.name in names]
    whole = sum(b.share for b in chosen)
    tables, data = [], {}
    with on_one_thread():
        for b in chosen:
            began = time.monotonic()
            findings = b.run(seconds * b.share / whole)
            tables += list(findings.tables)
            data[b.name] = findings.data
            say(f"{b.name}: {time.monotonic() - began:.0f} s")
    return envelope.result("benchmarks", maker, tables, {"benchmarks": data, "load": os.getloadavg()[0]})


LEGEND = """\
Times are taken in turn in one process of one thread, on the process's own clock; a ratio is the geometric mean over
rounds, with a 95 % interval. *MHA* is four linear maps and torch's fused attention. *FLOPs* are those that the
formulas need, forward and backward, with causal attention counted by half. Work that a path repeats is not counted,
so repeating shows as a higher *time / FLOPs*, the quotient of the two ratios; at 1 CEM makes as good use of the
machine as what it is compared with. A path is timed only if its output and gradients are within twice the formula's
own error of float64, in the same process (*error / budget* at most 1). *By size* is the path that a layer chooses by
itself. For one or two steps it is `formula` for few tokens and `tiles` for many. For more steps it is `blocks`, which
keeps no attention weights for the backward pass, only what each step has read from the memory. It computes the rest
again: half as many FLOPs more in the linear maps, a sixth more in attention (as torch's fused attention does). With a
shared diagonal beyond T = 4, or with one per head, what is read is more than the states: then only these are kept,
and a whole step is computed again, a third more FLOPs. *Peak GB* is measured on a GPU only."""


def conclusion(result: Mapping[str, Any]) -> str:
    """The cost of attention in a sentence; empty if it was not measured."""
    attention = (result["benchmarks"].get("attention") or {"rows": ()})["rows"]
    spans = []
    for T in (1, 2, 4, 8):
        rows = [row for row in attention if row["attention"] == f"T={T}" and row["seconds"] and not row["failure"]]
        if ratios := [paired_ratio(row["seconds"], row["baseline_seconds"]).mean for row in rows]:
            spans.append(f"{min(ratios):.2f} to {max(ratios):.2f} (T = {T})")
    over = "times as long as multi-head attention (MHA)"
    return f"CEM attention without ALiBi or diagonal takes {', '.join(spans)} {over}." if spans else ""


def page(result: Mapping[str, Any], picture: tuple[str, Picture] | None) -> str:
    """The page of a result.

    Args:
        picture: the one beside the page, with the name of its file.
    """
    made_by = result["made_by"]
    parts = [
        "# Benchmarks",
        (
            f"Made by `{made_by['command']}` in {made_by['duration_seconds']:.0f} s on {made_by['device']['name']},"
            f" {made_by['created'][:10]}, torch {made_by['versions']['torch']}. At the end the"
            f" load average was {result['load']:.1f}. This process alone makes 1; with more, other work ran, and"
            " single figures may be off."
        ),
        *filter(None, [conclusion(result)]),
        LEGEND,
    ]
    if picture:
        name, drawn = picture
        parts += [f"![{drawn.title}]({name})", f"*{drawn.title}.* {drawn.about}"]
    parts.append(markdown(envelope.tables_of(result)))
    return "\n\n".join(parts) + "\n"
