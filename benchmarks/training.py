"""A training step of a language model: tokens per second, model FLOPs utilisation, peak memory.

Utilisation is the share of this device's own speed, measured on square products, that goes into the model's matrix
products: forward and backward by the formula, causal attention as half, without recomputation.
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.measuring import MOVED, causal_flops, forget_peak, gigabytes, moved, peak, seeded
from cemverify.cem import blocked, presets
from cemverify.cem.layers import AttentionConfig
from cemverify.cem.models import LanguageModel, LanguageModelConfig
from cemverify.results.envelope import Table
from synthetic.training.cost import cost_of, on_meta, parameters
from synthetic.training.frames import shared_preconditioners
from synthetic.training.machine import Machine, peak_memory, synchronise
from synthetic.training.recipe import Recipe
from synthetic.training.training import nats, surprisals


@dataclass(frozen=True)
class Contender:
    """A model and the path that its descents take; None leaves the choice to each layer."""

    name: str
    model: LanguageModelConfig
    path: blocked.Path | None = None
    compiled: bool = False  # as in training on a GPU

    @property
    def how(self) -> str:
        """The way it is computed, in words."""
        return "compiled" if self.compiled else self.path or "by size"


@dataclass(frozen=True)
class Step:
    """The measurements of a training step."""

    contender: Contender  # of what
    # batch, context: windows in one pass, and J
    batch: int
    context: int
    flops: float  # of a step, as above
    seconds: Sequence[float]  # of each step
    peak: int | None  # bytes
    failure: str | None = None  # why there are none

    @property
    def tokens_per_second(self) -> float:
        """Tokens trained on per second, from the median time of a step."""
        return self.batch * self.context / statistics.median(self.seconds)

    def utilisation(self, peak_flops: float) -> float:
        """The share of the device's speed that is used."""
        return self.flops / statistics.median(self.seconds) / peak_flops


def without_diagonal(config: LanguageModelConfig) -> LanguageModelConfig:
    """A CEM model without the diagonal in its attention, otherwise as given."""
    assert isinstance(config.block.attention, AttentionConfig)
    return replace(config, block=replace(config.block, attention=replace(config.block.attention, diagonal="none")))


def contenders(size: str, depths: Sequence[int]) -> list[Contender]:
    """Llama of the paper's size, and CEM with the preconditioners of the studies and the paper's, by both paths."""
    rows = [Contender(f"{size} Llama RoPE", presets.llama(size), compiled=compiled) for compiled in (True, False)]
    for T in depths:
        name, config = f"{size} CEM T={T}", shared_preconditioners(presets.full_cem(size, T))
        rows += [Contender(name, config, compiled=compiled) for compiled in ((True, False) if T <= 2 else (False,))]
        rows += [Contender(name, config, path) for path in ("blocks", "formula")]
    return rows + [Contender(f"{size} full CEM T={T}", presets.full_cem(size, T), "blocks") for T in depths]


def measure(contender: Contender, *, batch: int, context: int, device: str, steps: int, seconds: float) -> Step:
    """Trains on random tokens: one step to warm up, then timed steps; in bfloat16 on a GPU.

    Args:
        steps: at most. seconds: no further step begins after that.
    """
    flops = training_flops(contender.model, context) * batch * context
    recipe = Recipe(steps, batch, context, precision="bfloat16" if device.startswith("cuda") else "float32")
    measured = Step(contender, batch, context, flops, (), None)
    try:
        machine = Machine(device, contender.compiled)
        model = machine.wrap(LanguageModel(contender.model, seeded()))
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        tokens = torch.randint(contender.model.vocabulary, (batch, context + 1), generator=seeded()).to(device)
        forget_peak(device)
        taken: list[float] = []
        for i in range(steps + 1):
            synchronise(device)
            began = time.perf_counter()
            with nullcontext() if contender.path is None else blocked.using(contender.path):
                loss = nats(model, tokens, recipe, machine.fused(surprisals)).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimiser.step()
            optimiser.zero_grad()
            synchronise(device)
            if i == 0:
                started = time.monotonic()  # the first step starts libraries, and may compile
            else:
                taken.append(time.perf_counter() - began)
            if i > 0 and time.monotonic() - started > seconds:
                break
        return replace(measured, seconds=taken, peak=peak(device))
    except (torch.OutOfMemoryError, RuntimeError) as error:
        if "memory" not in str(error):
            raise
        return replace(measured, failure="out of memory")


def apart(contender: Contender, *, batch: int, context: int, steps: int, seconds: float) -> Step:
    """Measures on a CPU in a fresh process, so that the peak of resident memory is this model's alone."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        return pool.submit(_alone, contender, batch, context, steps, seconds).result()


def _alone(contender: Contender, batch: int, context: int, steps: int, seconds: float) -> Step:
    torch.set_num_threads(1)
    before = peak_memory("cpu")
    step = measure(contender, batch=batch, context=context, device="cpu", steps=steps, seconds=seconds)
    return replace(step, peak=peak_memory("cpu") - before)


def training_flops(config: LanguageModelConfig, context: int) -> float:
    """FLOPs of forward and backward per token, with attention on half of all pairs."""
    with blocked.using("formula"):
        return 3 * causal_flops(lambda J: cost_of(on_meta(config), J).forward, context)


def table(title: str, steps: Sequence[Step], peak_flops: float, traffic: Mapping[str, Any] | None = None) -> Table:
    """One line for each contender.

    Args:
        traffic: memory traffic by model, by way of computation, and by part (`benchmarks.rehearsal.traffic`).
    """
    columns = ("model", "path", "parameters", "batch", "GFLOP / token", "tokens / s", "utilisation", "peak GB")
    if traffic is None:
        return Table(title, columns, [_cells(step, peak_flops) for step in steps])
    counted = [traffic.get(s.contender.name, {}).get(s.contender.how, {}).get("step") for s in steps]
    rows = [[*_cells(s, peak_flops), *moved(of, s.seconds, 0)] for s, of in zip(steps, counted, strict=True)]
    return Table(title, (*columns, *MOVED), rows)


def _cells(step: Step, peak_flops: float) -> list[Any]:
    config = step.contender
    tokens = step.batch * step.context
    own = [
        config.name,
        config.how,
        f"{parameters(config.model) / 1e6:.1f}M",
        f"{step.batch} x {step.context:,}",
        f"{step.flops / tokens / 1e9:.2f}",
    ]
    if not step.seconds:
        return [*own, step.failure, "", ""]
    used = f"{100 * step.utilisation(peak_flops):.1f} %"
    return [*own, f"{step.tokens_per_second:,.0f}", used, gigabytes(step.peak)]


def as_json(steps: Sequence[Step]) -> list[Mapping[str, Any]]:
    """The measurements for a result file."""
    return [
        {
            "model": step.contender.name,
            "path": step.contender.how,
            "parameters": parameters(step.contender.model),
            "batch": step.batch,
            "context": step.context,
            "flops_per_step": step.flops,
            "seconds": list(step.seconds),
            "peak_bytes": step.peak,
            "failure": step.failure,
        }
        for step in steps
    ]
