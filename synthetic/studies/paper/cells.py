"""The cells of the language studies: one model, trained with one seed, scored along the way.

A cell names its corpus by where the text comes from and by the digest of the tokens. Where the tokens lie on a
machine is no part of it: workers look in the folder that CEMVERIFY_CORPORA names, which they inherit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

from torch import Tensor

from cemverify.console.errors import UsageError
from cemverify.runs import algorithm
from cemverify.runs.plain import digest, plain
from synthetic.corpora.batches import Batches, spread_windows
from synthetic.corpora.choice import PinnedCorpus, corpora_folder
from synthetic.studies.paper.rows import StudyPlan, Variant
from synthetic.training.checkpoints import saved_step
from synthetic.training.cost import Cost, cost_of
from synthetic.training.looped import LoopedConfig, LoopedModel, looped_on_meta, paired
from synthetic.training.machine import Machine
from synthetic.training.metrics import Metrics, lines
from synthetic.training.recipe import Recipe
from synthetic.training.training import Saving, Step, score, train

# A training of so many steps is worth checkpoints, one at each validation.
LONG = 5000


@dataclass(frozen=True)
class TrainingCell:
    """A model trained with one seed.

    Attributes:
        corpus: on which. looped: the model. recipe: how. seed: of batches and first weights.
        every: steps between two validations, windows: of how many windows. device: "cpu" or "cuda".
    """

    corpus: PinnedCorpus
    looped: LoopedConfig
    recipe: Recipe
    seed: int
    every: int
    windows: int
    device: str = "cpu"


@dataclass(frozen=True)
class TrainingRecord:
    """What came of a training.

    Attributes:
        parameters: of the model. forward, training: FLOPs per token.
        steps, bits: validation along the way, bits per byte after so many steps; the last is after the last step.
        trained: the mean training loss since the validation before, in bits per token.
        diverged_at: the step at which a value was not finite, and where; None if none was.
        batches: a fingerprint of what it was trained on.
    """

    parameters: int
    forward: float
    training: float
    steps: tuple[int, ...]
    bits: tuple[float, ...]
    trained: tuple[float, ...]
    diverged_at: int | None
    where: str | None
    batches: str

    @property
    def final(self) -> float | None:
        """Bits per byte after the last step; None if it diverged."""
        return None if self.diverged_at is not None else self.bits[-1]


@algorithm("synthetic.language.paper.cells:compute_training", corpora=2, models=1, training=1, scoring=1)
def compute_training(cell: TrainingCell) -> dict[str, Any]:
    """Trains a model and scores it on the same windows of the validation part every so many steps."""
    folder = corpora_folder()
    corpus = cell.corpus.open(folder)
    machine = Machine(cell.device)
    model = paired(cell.looped, cell.seed).to(cell.device)
    batches = Batches(corpus.train.tokens, cell.seed, cell.recipe.batch, cell.recipe.context)
    windows = spread_windows(corpus.validation.tokens, cell.windows, cell.recipe.context)
    path = folder / "checkpoints" / f"{digest(plain(cell))[:24]}.safetensors"
    saving = Saving(path, cell.every, {"cell": plain(cell)}, resume=True) if cell.recipe.steps > LONG else None
    kept = path.with_suffix(".jsonl") if saving else None
    metrics = Metrics(kept, saved_step(path) if saving else 0)
    seen = _Seen(cell, model, windows, machine, corpus.validation.tokens_per_byte, metrics)
    if kept is not None:
        seen.recall(lines(kept))
    try:
        training = train(model, cell.recipe, batches, machine, saving=saving, observe=seen)
    finally:
        metrics.close()
    diverged_at = training.diverged_at
    if diverged_at is None and not all(map(math.isfinite, seen.bits)):
        diverged_at = next(s for s, bits in zip(seen.steps, seen.bits, strict=True) if not math.isfinite(bits))
    sound = [i for i, bits in enumerate(seen.bits) if math.isfinite(bits)]
    cost = measured(cell.looped, cell.recipe.context)
    record = TrainingRecord(
        parameters=count(cell.looped),
        forward=cost.forward,
        training=cost.training,
        steps=tuple(seen.steps[i] for i in sound),
        bits=tuple(seen.bits[i] for i in sound),
        trained=tuple(seen.trained[i] for i in sound),
        diverged_at=diverged_at,
        where=training.where,
        batches=training.batches,
    )
    for leftover in (path, path.with_suffix(".jsonl")):
        leftover.unlink(missing_ok=True)
    return asdict(record)


class _Seen:
    """Scores the model on the same windows every so many steps; `train` calls it after each step."""

    def __init__(
        self,
        cell: TrainingCell,
        model: LoopedModel,
        windows: Tensor,
        machine: Machine,
        per_byte: float,
        metrics: Metrics,
    ) -> None:
        self.cell, self.model, self.windows, self.machine = cell, model, windows, machine
        self.per_byte, self.metrics = per_byte, metrics
        self.steps: list[int] = []
        self.bits: list[float] = []
        self.trained: list[float] = []
        self.since: list[float] = []

    def recall(self, kept: Sequence[Mapping[str, Any]]) -> None:
        """Takes up the validations of a run that was interrupted.

        Raises:
            UsageError: a line holds none.
        """
        for line in kept:
            bits, trained = line.get("validation"), line.get("trained")
            if not isinstance(bits, float | None) or not isinstance(trained, float | None):
                raise UsageError(f"the metrics {self.metrics.path} are damaged at step {line['step']}; delete them")
            self._take(line["step"], bits, math.nan if trained is None else trained)

    def __call__(self, step: Step) -> None:
        self.since.append(step.bits)
        if step.step % self.cell.every and step.step != self.cell.recipe.steps:
            return
        mean = float(score(self.model, self.windows, self.cell.recipe, self.machine).mean())
        self._take(step.step, mean * self.per_byte, math.fsum(self.since) / len(self.since))
        self.metrics.add({"step": step.step, "validation": self.bits[-1], "trained": self.trained[-1]})
        self.since = []

    def _take(self, step: int, bits: float | None, trained: float) -> None:
        self.steps.append(step)
        self.bits.append(math.nan if bits is None else bits)
        self.trained.append(trained)


def training_cell(plan: StudyPlan, variant: Variant, seed: int, corpus: PinnedCorpus, device: str) -> TrainingCell:
    """The cell of one variant and seed of a study."""
    return TrainingCell(corpus, variant.looped, plan.recipe_of(variant), seed, plan.every, plan.windows, device)


def read_record(payload: Mapping[str, Any]) -> TrainingRecord:
    """The record of a cell's payload."""
    lists = ("steps", "bits", "trained")
    return TrainingRecord(**{**payload, **{name: tuple(payload[name]) for name in lists}})


@lru_cache
def count(looped: LoopedConfig) -> int:
    """How many parameters a model has; how often its layers are applied adds none."""
    return sum(parameter.numel() for parameter in looped_on_meta(looped).parameters())


@lru_cache
def measured(looped: LoopedConfig, context: int) -> Cost:
    """FLOPs per token in windows of J = context tokens."""
    return cost_of(looped_on_meta(looped), context)
