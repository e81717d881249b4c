"""`python -m synthetic language`: trains the contenders of a preset, side by side or on several GPUs, and judges.

With --study it repeats one of the paper's experiments instead (`study_command`).
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures.process import BrokenProcessPool
from dataclasses import asdict, replace
from typing import Any, TextIO

from torch import Tensor, from_numpy

from cemverify.cores import cores
from cemverify.errors import UsageError
from cemverify.results import Maker, ResultError, check_writable, result, show, write
from cemverify.runs.executors import processes
from cemverify.tables import terminal
from synthetic.corpora.batches import Batches, spread_windows
from synthetic.corpora.chains import Chain
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.tokenisers import Symbols
from synthetic.corpora.yardsticks import yardsticks
from synthetic.language.entries import Entry, Keeping, enter
from synthetic.language.options import add_arguments, check, command, open_corpus, settled, study
from synthetic.language.presets import Contender, Study
from synthetic.language.report import Ground, payload, tables
from synthetic.language.training.cost import cost
from synthetic.language.training.machine import (
    Machine,
    agree,
    choose,
    compiler_missing,
    leave,
    one_of_several,
    one_thread,
    peak_flops,
)
from synthetic.language.training.training import Step

__all__ = ["add_arguments", "run"]

SECONDS_BETWEEN_LINES = 5.0


def run(options: argparse.Namespace) -> int:
    """Runs the study, prints its tables and writes its result file; 0 if it passes, 1 if not.

    Raises:
        UsageError: an option makes no sense here, or the corpus cannot be had.
        cemverify.results.ResultError: the result file cannot be written.
    """
    rank = int(os.environ.get("RANK", "0"))
    try:
        return _chosen(options)
    except (UsageError, ResultError):
        if rank > 0:  # the first process tells it
            raise SystemExit(2) from None
        raise
    except KeyboardInterrupt as interrupt:
        if options.experiment is not None:  # which says itself what is kept
            raise
        raise KeyboardInterrupt(_left_behind(options)) from interrupt


def _left_behind(options: argparse.Namespace) -> str:
    """What a preset that is interrupted says."""
    if options.folder is None:
        return "interrupted; nothing was written"
    if options.save_every is None and not options.resume:
        return f"interrupted; {options.folder} holds the metrics so far, and no checkpoint (--save-every)"
    return f"interrupted; checkpoints are in {options.folder}, and the same command with --resume goes on"


def _chosen(options: argparse.Namespace) -> int:
    check(options)
    if (options.experiment is not None or options.implementation) and one_of_several():
        what = "--study" if options.experiment is not None else "--implementation"
        raise UsageError(
            f"torchrun trains one model together, and {what} many by themselves: start it without torchrun"
            " (a study spreads by --workers, --shard and --cluster)"
        )
    if options.experiment is not None:
        from synthetic.language.paper.study_command import run_study  # scipy and matplotlib are heavy to import

        return run_study(options)
    options = argparse.Namespace(**{**vars(options), **settled(options)})
    check_writable(options.output)
    if options.implementation:
        from synthetic.language.implementations import compare  # the verifier is heavy to import

        return compare(options)
    compiled = options.compile
    machine = choose(options.device, compiled=compiled, sharded=options.sharded)
    if compiled and (missing := compiler_missing(machine.device)):
        print(f"note: {missing}", file=sys.stderr)
        options.compile = False
        machine = choose(options.device, compiled=False, sharded=options.sharded)
    try:
        code = _run(options, machine)
    except BaseException:
        leave(together=False)
        raise
    leave()
    return code


def _open_together(options: argparse.Namespace, machine: Machine) -> tuple[Corpus, Chain | None]:
    """The first process makes the corpus, the others find it; or all hear why there is none."""
    found: tuple[Corpus, Chain | None] | None = None
    failed: UsageError | ResultError | None = None
    if machine.rank == 0:
        try:
            study(options, machine.device, Symbols().vocabulary)  # wrong numbers need no corpus to be told
            if options.folder is not None:
                check_writable(options.folder / "metrics.jsonl")
            found = open_corpus(options)
        except (UsageError, ResultError) as error:
            failed = error
    if (why := agree(None if failed is None else str(failed))) is not None:
        raise failed or UsageError(why)
    return found or open_corpus(options)


def _run(options: argparse.Namespace, machine: Machine) -> int:
    corpus, chain = _open_together(options, machine)
    asked = study(options, machine.device, corpus.vocabulary)
    if chain is not None:  # how soon a model finds the order of a chain is a matter of its positions
        asked = replace(asked, band=math.inf, why_band="no band is asked for on a chain")
    maker = Maker.now(command(options, machine.device), asdict(asked), options.seed, machine.device)
    with one_thread():
        ground = survey(asked, corpus, chain, machine)
        Batches(
            corpus.train.tokens, options.seed, asked.recipe.batch, asked.recipe.context
        )  # before any work: fits it?
        entries = _enter_all(options, asked, ground, machine)
        if machine.rank > 0:
            return 0
        content = result("language", maker, tables(asked, ground, entries), payload(asked, ground, entries))
        show(terminal(tables(asked, ground, entries)))
    verdict: Any = content["verdict"]
    show("\n" + ("pass: " + _passed(asked, entries) if verdict["pass"] else "fail:"))
    for reason in verdict["reasons"]:
        show(f"  {reason}")
    write(options.output, content)
    show(f"written to {options.output}")
    return 0 if verdict["pass"] else 1


def survey(asked: Study, corpus: Corpus, chain: Chain | None, machine: Machine) -> Ground:
    """What the models are measured on and against.

    Raises:
        UsageError: the validation part is shorter than a window.
    """
    windows = spread_windows(corpus.validation.tokens, asked.validation_windows, asked.recipe.context)
    return Ground(
        corpus,
        windows,
        yardsticks(corpus.train.tokens, corpus.vocabulary, windows),
        None if chain is None else from_numpy(chain.surprisals(windows).mean(1)),
        None if chain is None else chain.rate(),
        peak_flops(machine.device, asked.recipe.precision),
        machine.world,
        machine.compiled,
    )


def _passed(asked: Study, entries: Sequence[Entry]) -> str:
    said = "every model needs fewer bits than a bigram model"
    if (
        math.isfinite(asked.band)
        and any(e.contender.baseline for e in entries)
        and not all(e.contender.baseline for e in entries)
    ):
        said += f", none more than {asked.band:g} times those of Llama with the same positions ({asked.why_band})"
    if any(layer.promised is not None for e in entries for layer in e.probes):
        said += "; every energy falls where it must"
    return said


# --- the contenders, one after another or side by side --------------------------------------------


def _enter_all(options: argparse.Namespace, asked: Study, ground: Ground, machine: Machine) -> list[Entry]:
    """One entry for each contender, in their order."""
    workers = min(cores() if options.workers is None else options.workers, len(asked.contenders))
    if workers <= 1 or machine.cuda or machine.world > 1:
        return [_enter(options, asked, c, ground.corpus, ground.windows, machine) for c in asked.contenders]
    by_cost = sorted(asked.contenders, key=lambda c: -cost(c.model, asked.recipe.context).training)  # longest first
    with processes(workers).open() as pool:
        try:
            futures = {c.name: pool.submit(_enter_here, options, asked, c, ground.windows, machine) for c in by_cost}
            return [futures[c.name].result() for c in asked.contenders]
        except BrokenProcessPool as error:
            raise UsageError("a worker process died, most likely for want of memory; try --workers 1") from error


def _enter_here(
    options: argparse.Namespace, asked: Study, contender: Contender, windows: Tensor, machine: Machine
) -> Entry:
    """In a process of its own, which finds the corpus where the first one made it."""
    with one_thread():
        return _enter(options, asked, contender, open_corpus(options)[0], windows, machine)


def _enter(
    options: argparse.Namespace,
    asked: Study,
    contender: Contender,
    corpus: Corpus,
    windows: Tensor,
    machine: Machine,
) -> Entry:
    keeping = Keeping(options.folder, options.save_every, options.resume is True) if options.folder else None
    observe = _Progress(contender.name, asked, sys.stderr) if machine.rank == 0 else lambda _step: None
    return enter(contender, asked, corpus, windows, options.seed, machine, keeping=keeping, observe=observe)


class _Progress:
    """A line on stderr every few seconds and at the end."""

    def __init__(self, name: str, asked: Study, stream: TextIO) -> None:
        self.name = name
        self.recipe = asked.recipe
        self.stream = stream
        self.last = -math.inf

    def __call__(self, step: Step) -> None:
        done = step.step == self.recipe.steps
        if not done and time.monotonic() - self.last < SECONDS_BETWEEN_LINES:
            return
        self.last = time.monotonic()
        left = (self.recipe.steps - step.step) * self.recipe.batch * self.recipe.context / step.rate
        print(
            f"{self.name:11} step {step.step}/{self.recipe.steps}  {step.bits:.3f} bits/token"
            f"  {step.rate:,.0f} tokens/s" + ("" if done else f"  {left:.0f} s left"),
            file=self.stream,
            flush=True,
        )
