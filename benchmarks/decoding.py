"""Decoding one token at a time from a cache: CEM keeps one tensor for keys and values, Llama two."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.measuring import seeded
from cemverify.cem.models import LanguageModel, LanguageModelConfig
from cemverify.results.envelope import Table
from synthetic.training.machine import synchronise


@dataclass(frozen=True)
class Decoded:
    """The cost of a token after a context."""

    model: str  # its name
    context: int  # tokens in the cache
    batch: int  # sequences decoded together
    seconds: Sequence[float]  # of each token step
    cache_bytes_per_token: float  # of the cache, for one token of one sequence

    @property
    def tokens_per_second(self) -> float:
        """Tokens decoded per second, over all sequences."""
        return self.batch / statistics.median(self.seconds)


@torch.no_grad()
def measure(
    models: Mapping[str, LanguageModelConfig],
    *,
    contexts: Sequence[int],
    batch: int,
    device: str,
    dtype: torch.dtype,
    rounds: int,
    seconds: float,
) -> list[Decoded]:
    """Fills each model's cache with a context, then takes single steps in turn."""
    built = {name: LanguageModel(c, seeded()).to(device, dtype) for name, c in models.items()}
    rows = []
    for context in contexts:
        tokens = torch.randint(256, (batch, context), generator=seeded()).to(device)
        caches = {name: _filled(model, tokens) for name, model in built.items()}
        taken: dict[str, list[float]] = {name: [] for name in built}
        started = time.monotonic()
        for i in range(rounds + 2):
            for name, model in built.items():
                synchronise(device)
                began = time.perf_counter()
                caches[name] = model.decode(tokens[:, -1:], caches[name])[1]
                synchronise(device)
                if i >= 2:
                    taken[name].append(time.perf_counter() - began)
            if i >= 4 and time.monotonic() - started > seconds:
                break
        for name in built:
            size = sum(t.numel() * t.element_size() for t in _tensors(caches[name])) / (context + i + 1) / batch
            rows.append(Decoded(name, context, batch, taken[name], size))
        del caches
    return rows


def table(title: str, decoded: Sequence[Decoded]) -> Table:
    """One line for each model and context; Llama comes first for each context and batch, and is the baseline."""
    columns = ("context", "sequences", "model", "tokens / s", "time / Llama", "cache bytes / token")
    first = {(d.context, d.batch): d for d in reversed(decoded)}
    rows: list[list[Any]] = []
    for d in decoded:
        own = [f"{d.context:,}", d.batch, d.model]
        against = first[d.context, d.batch].tokens_per_second / d.tokens_per_second
        rows.append([*own, f"{d.tokens_per_second:,.0f}", f"{against:.2f}", f"{d.cache_bytes_per_token:,.0f}"])
    return Table(title, columns, rows)


SEEN = 512  # tokens that a model actually reads before it decodes; a longer cache repeats their entries


def _filled(model: LanguageModel, tokens: Tensor) -> list[Any]:
    """A cache as long as the tokens; decoding speed does not depend on its content."""
    context = tokens.shape[1]
    _, cache = model.decode(tokens[:, : min(context, SEEN)])
    times = -(-context // SEEN)
    return cache if times == 1 else [_repeated(memory, times, context) for memory in cache]


def _repeated(memory: Any, times: int, context: int) -> Any:
    """The memory repeated and cut to the context; tokens are the second-to-last axis."""
    longer = {
        field.name: tensor.repeat(*(1,) * (tensor.dim() - 2), times, 1)[..., :context, :].contiguous()
        for field in fields(memory)
        if isinstance(tensor := getattr(memory, field.name), Tensor)
    }
    return replace(memory, **longer, spare=(None, None))


def _tensors(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    if isinstance(value, list):
        return [t for part in value for t in _tensors(part)]
    if is_dataclass(value):
        return [t for field in fields(value) for t in _tensors(getattr(value, field.name))]
    return []
