"""The contenders of a preset, trained one after another or side by side, and all judged on the same windows.

Under torchrun every process runs this: the first one makes the corpus and speaks, and all train each model together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor

from cemverify.console.errors import UsageError
from cemverify.processes.cores import cores, on_one_thread
from cemverify.results.envelope import check_outputs
from cemverify.runs.executors import processes
from synthetic.corpora.choice import CorpusChoice, chain_of, open_corpus
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.tokenisers import Symbols
from synthetic.corpora.tokens import Batches
from synthetic.side_by_side.model_results import Ground, Keeping, ModelResult, survey, train_contender
from synthetic.side_by_side.presets import Contender, LanguageConfig, PresetChoice
from synthetic.side_by_side.report import TrainingFindings, reasons_to_fail
from synthetic.training.cost import cost
from synthetic.training.machine import Machine, by_the_first
from synthetic.training.training import check_shares


@dataclass(frozen=True)
class TrainingRun:
    """What is trained, on what, and what is kept of it."""

    models: PresetChoice  # a preset and what is changed of it
    corpus: CorpusChoice
    corpora: Path  # the folder where tokens lie
    seed: int = 0  # of weights and batches
    workers: int | None = None  # processes on this machine; None takes one for each CPU
    keeping: Keeping | None = None  # of metrics, weights and checkpoints; None keeps nothing


def train_side_by_side(run: TrainingRun, machine: Machine) -> TrainingFindings:
    """Trains and measures all contenders of a run; progress goes to stderr."""
    corpus = _open_together(run, machine)
    config = run.models.config(machine.device, corpus.vocabulary)
    chain = chain_of(run.corpus)
    if chain is not None:  # how soon a model finds the order of a chain is a matter of its positions
        config = replace(config, band=math.inf, why_band="no band is asked for on a chain")
    with on_one_thread():
        ground = survey(config, corpus, chain, machine)
        # before any work: does a window fit?
        Batches(corpus.train.tokens, run.seed, config.recipe.batch, config.recipe.context)
        results = _train_all(run, config, ground, machine)
    reasons = reasons_to_fail(results, ground.yardsticks.bigram, config.band, ground.floor)
    return TrainingFindings(config, ground, tuple(results), tuple(reasons))


def _open_together(run: TrainingRun, machine: Machine) -> Corpus:
    """The first process makes the corpus, the others find it; or all hear why there is none."""

    def make() -> Corpus:
        # wrong numbers need no corpus to be told
        check_shares(run.models.config(machine.device, Symbols().vocabulary).recipe, machine)
        if run.keeping is not None:
            check_outputs(folders=[run.keeping.folder])
        return open_corpus(run.corpus, run.corpora)

    return by_the_first(make, first=machine.rank == 0) or open_corpus(run.corpus, run.corpora)


def _train_all(run: TrainingRun, config: LanguageConfig, ground: Ground, machine: Machine) -> Sequence[ModelResult]:
    """One result for each contender, in their order."""
    workers = min(cores() if run.workers is None else run.workers, len(config.contenders))
    if workers <= 1 or machine.cuda or machine.world > 1:
        return [
            train_contender(c, config, ground.corpus, ground.windows, run.seed, machine, run.keeping)
            for c in config.contenders
        ]
    by_cost = sorted(config.contenders, key=lambda c: -cost(c.model, config.recipe.context).training)  # longest first
    # torch's optimisers import its compiler, which takes longer than torch itself
    with processes(workers, [__name__, "torch._dynamo"]).open() as pool:
        try:
            futures = {c.name: pool.submit(_train_here, run, config, c, ground.windows, machine) for c in by_cost}
            return [futures[c.name].result() for c in config.contenders]
        except BrokenProcessPool as error:
            raise UsageError("a worker process died, most likely for want of memory; try --workers 1") from error


def _train_here(
    run: TrainingRun, config: LanguageConfig, contender: Contender, windows: Tensor, machine: Machine
) -> ModelResult:
    """Trains a contender in a worker process, which opens the corpus that the first process made."""
    with on_one_thread():
        corpus = open_corpus(run.corpus, run.corpora)
        return train_contender(contender, config, corpus, windows, run.seed, machine, run.keeping)
