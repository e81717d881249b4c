"""One contender: trained, scored and looked into."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, from_numpy

from cemverify.cem.models import LanguageModel
from cemverify.console.streams import note
from synthetic.corpora.chains import Chain, Rate
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.tokens import Batches, spread_windows
from synthetic.corpora.yardsticks import Yardsticks, yardsticks
from synthetic.side_by_side.presets import Contender, LanguageConfig
from synthetic.training.checkpoints import save_weights, saved_step
from synthetic.training.cost import Cost, cost
from synthetic.training.machine import Machine, forget_peak_memory, peak_flops, peak_memory
from synthetic.training.metrics import Metrics
from synthetic.training.recipe import Recipe
from synthetic.training.steps import LayerProbe, Steps, probe, steps_of
from synthetic.training.training import Saving, Training, TrainingStep, score, train, unsharded

SECONDS_BETWEEN_LINES = 5.0
PROBED_TOKENS = 2048  # at most: attention weights and energies of all layers are looked at


@dataclass(frozen=True)
class ModelResult:
    """What was found out about one model."""

    contender: Contender
    parameters: int  # how many it has
    cost: Cost  # FLOPs per token
    training: Training
    validation: Tensor | None  # bits per token of each validation window, (W,); None if it diverged
    probes: tuple[LayerProbe, ...]  # of all layers after training; () for a model that diverged
    peak_bytes: int  # of memory while it was trained
    # start, trained: how the steps of its CEM layers lie before and after training; () after a run that diverged
    start: tuple[Steps, ...] = ()
    trained: tuple[Steps, ...] = ()

    @property
    def bits(self) -> float | None:
        """Mean bits per token over the validation windows; None if it diverged."""
        return None if self.validation is None else float(self.validation.mean())

    @property
    def standard_error(self) -> float | None:
        """The standard error of `bits` over the validation windows of this one model; None with fewer than two."""
        if self.validation is None or len(self.validation) < 2:
            return None
        return float(self.validation.std(correction=1)) / math.sqrt(len(self.validation))


@dataclass(frozen=True)
class Keeping:
    """What is kept of the runs, each contender in a folder of its own."""

    folder: Path  # of the run
    every: int | None = None  # steps between checkpoints; None keeps none but the weights at the end
    # whether to go on from checkpoints that are there; then the last step is kept, whatever `every` says
    resume: bool = False

    def of(self, contender: Contender) -> Path:
        """The folder in which a contender keeps its metrics, weights and checkpoints."""
        return self.folder / contender.slug


def train_contender(
    contender: Contender,
    config: LanguageConfig,
    corpus: Corpus,
    windows: Tensor,
    seed: int,
    machine: Machine,
    keeping: Keeping | None,
) -> ModelResult:
    """Trains a contender and measures it.

    Args:
        windows: of the validation part, (W, J+1). seed: of the first weights and the batches.
    """
    recipe = config.recipe
    model = LanguageModel(contender.model, torch.Generator().manual_seed(seed))
    few = windows[: max(1, min(recipe.batch, PROBED_TOKENS // recipe.context)), :-1]
    start = steps_of(model, few)
    if recipe.precision == "float64":
        model = model.double()
    count = sum(parameter.numel() for parameter in model.parameters())
    specification = _specification(contender, recipe, corpus, seed)
    saving, metrics, done = None, Metrics(None), 0
    if keeping is not None:
        folder = keeping.of(contender)
        checkpoint = folder / "checkpoint.safetensors"
        done = saved_step(checkpoint) if keeping.resume else 0
        if keeping.every is not None or keeping.resume:
            saving = Saving(checkpoint, keeping.every or recipe.steps, specification, keeping.resume)
        if machine.rank == 0:
            metrics = Metrics(folder / "metrics.jsonl", done)
    few = few.to(machine.device)
    tell = _progress(contender.name, recipe)

    def look(step: TrainingStep) -> None:
        metrics.add(asdict(step))
        if step.step % config.probe_every == 0 and step.step < recipe.steps:
            layers = probe(unsharded(model), few)
            metrics.add({"step": step.step, "layers": [asdict(layer) for layer in layers]})
        if machine.rank == 0:
            tell(step)

    forget_peak_memory(machine.device)
    batches = Batches(corpus.train.tokens, seed, recipe.batch, recipe.context)
    try:
        training = train(model, recipe, batches, machine, saving=saving, observe=look)
        peak_bytes = peak_memory(machine.device)
        whole = unsharded(model)
        validation: Tensor | None = None
        probes: tuple[LayerProbe, ...] = ()
        trained: tuple[Steps, ...] = ()
        if training.diverged_at is None:
            scores = score(whole, windows, recipe, machine)
            if scores.isfinite().all():
                validation, probes, trained = scores, probe(whole, few), steps_of(whole, few)
                if done < recipe.steps:
                    metrics.add({"step": recipe.steps, "layers": [asdict(layer) for layer in probes]})
                if keeping is not None:
                    path = keeping.of(contender) / "weights.safetensors"
                    save_weights(path, whole, specification, writes=machine.rank == 0)
    finally:
        metrics.close()
    return ModelResult(
        contender,
        count,
        cost(contender.model, recipe.context),
        training,
        validation,
        probes,
        peak_bytes,
        start,
        trained,
    )


def _progress(name: str, recipe: Recipe) -> Callable[[TrainingStep], None]:
    """Prints a line on stderr every few seconds and at the end of a training."""
    last = -math.inf

    def tell(step: TrainingStep) -> None:
        nonlocal last
        left = recipe.steps - step.step
        if left and time.monotonic() - last < SECONDS_BETWEEN_LINES:
            return
        last = time.monotonic()
        ahead = f"  {left * recipe.batch * recipe.context / step.rate:.0f} s left for this model" if left else ""
        done = f"step {step.step}/{recipe.steps}  {step.bits:.3f} bits/token  {step.rate:,.0f} tokens/s"
        note(f"{name:11} {done}{ahead}")

    return tell


def _specification(contender: Contender, recipe: Recipe, corpus: Corpus, seed: int) -> dict[str, Any]:
    """JSON that decides a run on the CPU bit for bit."""
    return {
        "vocabulary": corpus.vocabulary,
        "corpus": corpus.digest,
        "tokeniser": corpus.tokeniser,
        "seed": seed,
        "model": asdict(contender.model),
        "recipe": asdict(recipe),
    }


# --- what models are measured on --------------------------------------------------------------------


@dataclass(frozen=True)
class Ground:
    """A corpus, the windows that are scored, and what simpler models and the device reach."""

    corpus: Corpus
    windows: Tensor  # (W, J+1), of the validation part
    yardsticks: Yardsticks
    floor: Tensor | None  # the least bits per token there can be on each window, (W,)
    # of the source. None of most corpora; a hidden chain may be too short to estimate its rate from
    rate: Rate | None
    peak_flops: float  # FLOP/s of matrix products on this device
    processes: int = 1  # that train a model together
    compiled: bool = False  # whether through torch.compile

    @property
    def per_byte(self) -> float:
        """Tokens per byte: what turns bits per token into bits per byte; over all of the validation part."""
        return self.corpus.validation.tokens_per_byte


def survey(config: LanguageConfig, corpus: Corpus, chain: Chain | None, machine: Machine) -> Ground:
    """The ground of a run; measures the speed of the device, which takes half a second.

    Args:
        chain: behind the corpus, if it is one.
    """
    windows = spread_windows(corpus.validation.tokens, config.validation_windows, config.recipe.context)
    return Ground(
        corpus,
        windows,
        yardsticks(corpus.train.tokens, corpus.vocabulary, windows),
        None if chain is None else from_numpy(chain.surprisals(windows).mean(1)),
        None if chain is None else chain.rate(),
        peak_flops(machine.device, config.recipe.precision),
        machine.world,
        machine.compiled,
    )
