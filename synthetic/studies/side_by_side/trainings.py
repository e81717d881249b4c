"""Contenders trained on the same batches, scored and probed, one after another or in parallel."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor, from_numpy

from cemverify.cem.models import LanguageModel
from cemverify.console.errors import UsageError
from cemverify.console.streams import note
from cemverify.processes.cores import cores, on_one_thread
from cemverify.results.envelope import check_outputs
from cemverify.runs.executors import processes
from synthetic.corpora.choice import CorpusChoice, chain_of, open_corpus
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.tokenisers import Symbols
from synthetic.corpora.tokens import Batches, spread_windows
from synthetic.corpora.yardsticks import Yardsticks, yardsticks
from synthetic.studies.side_by_side.rows import Contender, LanguageConfig, PresetChoice
from synthetic.training.checkpoints import save_weights
from synthetic.training.cost import Cost, cost
from synthetic.training.machine import Machine, forget_peak_memory, peak_flops, peak_memory
from synthetic.training.recipe import Recipe
from synthetic.training.steps import LayerProbe, Steps, probe, steps_of
from synthetic.training.training import Saving, Training, TrainingStep, check_shares, score, train

SECONDS_BETWEEN_LINES = 5.0
PROBED_TOKENS = 2048  # at most this many, for attention weights and energies of all layers


@dataclass(frozen=True)
class TrainingRun:
    """What is trained, on what, and what is kept."""

    models: PresetChoice  # a preset and what is changed of it
    corpus: CorpusChoice
    corpora: Path  # the folder where tokens lie
    seed: int = 0  # of weights and batches
    workers: int | None = None  # processes on this machine; None takes one for each CPU
    folder: Path | None = None  # for weights and checkpoints; None keeps nothing
    every: int | None = None  # steps between checkpoints; None keeps only the final weights
    # whether to resume from existing checkpoints; then the last step is kept, whatever `every` says
    resume: bool = False


@dataclass(frozen=True)
class ModelResult:
    """What was found about one model."""

    contender: Contender
    parameters: int  # their number
    cost: Cost  # FLOPs per token
    training: Training
    validation: Tensor | None  # bits per token of each validation window, (W,); None if it diverged
    probes: tuple[LayerProbe, ...]  # of all layers after training; () for a model that diverged
    peak_bytes: int  # the peak memory of its training
    # start, trained: the steps of its CEM layers before and after training; () after a run that diverged
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
class Ground:
    """A corpus, the windows that are scored, the scores of simpler models, and the device's speed."""

    corpus: Corpus
    windows: Tensor  # (W, J+1), of the validation part
    yardsticks: Yardsticks
    floor: Tensor | None  # the least possible bits per token of each window, (W,); None for text
    peak_flops: float  # FLOP/s of matrix products on this device
    machine: Machine

    @property
    def per_byte(self) -> float:
        """Tokens per byte over the whole validation part: the factor from bits per token to bits per byte."""
        return self.corpus.validation.tokens_per_byte


def train_side_by_side(run: TrainingRun, machine: Machine) -> tuple[LanguageConfig, Ground, list[ModelResult]]:
    """Trains and measures all contenders of a run; progress goes to stderr."""
    # refuse wrong numbers before a corpus is made
    check_shares(run.models.config(machine.device, Symbols().vocabulary).recipe)
    check_outputs(folders=[run.folder])
    corpus = open_corpus(run.corpus, run.corpora)
    config = run.models.config(machine.device, corpus.vocabulary)
    chain = chain_of(run.corpus)
    if chain is not None:  # how soon a model finds the order of a chain depends on its positions
        config = replace(config, band=math.inf, why_band="no band is asked for on a chain")
    with on_one_thread():
        windows = spread_windows(corpus.validation.tokens, config.validation_windows, config.recipe.context)
        ground = Ground(
            *(corpus, windows, yardsticks(corpus.train.tokens, corpus.vocabulary, windows)),
            None if chain is None else from_numpy(chain.surprisals(windows).mean(1)),
            peak_flops(machine.device, config.recipe.precision),
            machine,
        )
        # before any work: does a window fit?
        Batches(corpus.train.tokens, run.seed, config.recipe.batch, config.recipe.context)
        return config, ground, _train_all(run, config, ground)


def _train_all(run: TrainingRun, config: LanguageConfig, ground: Ground) -> list[ModelResult]:
    """One result for each contender, in their order."""
    workers, machine = min(cores() if run.workers is None else run.workers, len(config.contenders)), ground.machine
    if workers <= 1 or machine.cuda:
        return [train_contender(run, config, c, ground.corpus, ground.windows, machine) for c in config.contenders]
    by_cost = sorted(config.contenders, key=lambda c: -cost(c.model, config.recipe.context).training)  # longest first
    # torch's optimisers import its compiler, which takes longer than importing torch
    with processes(workers, [__name__, "torch._dynamo"]).open() as pool:
        try:
            futures = {c.name: pool.submit(_train_here, run, config, c, ground.windows, machine) for c in by_cost}
            return [futures[c.name].result() for c in config.contenders]
        except BrokenProcessPool as error:
            raise UsageError("a worker process died, most likely for want of memory; try --workers 1") from error


def _train_here(
    run: TrainingRun, config: LanguageConfig, contender: Contender, windows: Tensor, machine: Machine
) -> ModelResult:
    """Trains a contender in a worker process, which opens the existing corpus."""
    with on_one_thread():
        return train_contender(run, config, contender, open_corpus(run.corpus, run.corpora), windows, machine)


def train_contender(
    run: TrainingRun, config: LanguageConfig, contender: Contender, corpus: Corpus, windows: Tensor, machine: Machine
) -> ModelResult:
    """Trains a contender and measures it on windows of the validation part, (W, J+1)."""
    recipe = config.recipe
    model = LanguageModel(contender.model, torch.Generator().manual_seed(run.seed)).to(machine.device)
    few = windows[: max(1, min(recipe.batch, PROBED_TOKENS // recipe.context)), :-1].to(machine.device)
    start = steps_of(model, few)
    count = sum(parameter.numel() for parameter in model.parameters())
    specification = {  # JSON that determines a run on the CPU bit for bit
        "vocabulary": corpus.vocabulary,
        "corpus": corpus.digest,
        "tokeniser": corpus.tokeniser,
        "seed": run.seed,
        "model": asdict(contender.model),
        "recipe": asdict(recipe),
    }
    saving = None
    folder = None if run.folder is None else run.folder / contender.slug
    if folder is not None:  # it keeps at least each finished model
        saving = Saving(folder / "checkpoint.safetensors", run.every or recipe.steps, specification, run.resume)
    observe = _progress(contender.name, recipe, machine)
    forget_peak_memory(machine.device)
    batches = Batches(corpus.train.tokens, run.seed, recipe.batch, recipe.context)
    training = train(model, recipe, batches, machine, saving=saving, observe=observe)
    spent, peak = cost(contender.model, recipe.context), peak_memory(machine.device)
    result = ModelResult(contender, count, spent, training, None, (), peak, start)
    scores = score(model, windows, recipe, machine) if training.diverged_at is None else None
    if scores is not None and scores.isfinite().all():
        result = replace(result, validation=scores, probes=probe(model, few), trained=steps_of(model, few))
        if folder is not None:
            save_weights(folder / "weights.safetensors", model, specification)
    return result


def _progress(name: str, recipe: Recipe, machine: Machine) -> Callable[[TrainingStep], None]:
    """Prints a line on stderr every few seconds and at the end of a training; the first says what compiling took."""
    last = -math.inf
    if machine.compiled:
        note(f"{name:11} compiling")

    def tell(step: TrainingStep) -> None:
        nonlocal last
        left = recipe.steps - step.step
        if left and time.monotonic() - last < SECONDS_BETWEEN_LINES:
            return
        compiled = f"  compiled in {step.warm_up:.0f} s" if machine.compiled and last == -math.inf else ""
        last = time.monotonic()
        ahead = f"  {left * recipe.batch * recipe.context / step.rate:.0f} s left for this model" if left else ""
        done = f"step {step.step}/{recipe.steps}  {step.bits:.3f} bits/token  {step.rate:,.0f} tokens/s"
        note(f"{name:11} {done}{ahead}{compiled}")

    return tell
