"""When a study stops and where it writes: the options, the places that they name, and the writing."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.console.parsing import path, positive
from cemverify.console.streams import note
from cemverify.processes.devices import find_device
from cemverify.results import envelope
from cemverify.runs import CellStore, RunOptions, add_run_arguments, bring, hand_on, run_options
from synthetic.corpora.choice import CORPORA_VARIABLE, PinnedCorpus, open_corpus
from synthetic.corpora.corpus import Corpus
from synthetic.language.arguments import Command, add_compact, add_corpus_arguments, corpus_choice, named_texts
from synthetic.studies.engine.conduct import StudyRun
from synthetic.studies.engine.pages import write_page
from synthetic.training.machine import compiles

WHEN = """\
--estimate            print the rows and their cost, and train nothing; --tflops N: of your device
--until MINUTES       stop cleanly then, 0: train nothing; --cells FILE: trainings to share
--page FILE           a page in Markdown; --output FILE; --device cpu or cuda
"""


@dataclass(frozen=True)
class Workplace:
    """Where a study runs."""

    again: str  # the command that makes the same results
    device: str  # "cpu" or "cuda"
    compiled: bool  # whether models go through torch.compile
    where: RunOptions  # workers and store
    corpus: Corpus  # opened
    pinned: PinnedCorpus  # the same, for workers to open
    # output, cells, page: files to write; cells and page only on request
    output: Path
    cells: Path | None
    page: Path | None


def add_when(parser: Command) -> None:
    """The options that say when to stop and where to write, those of the corpus, and those of the run."""
    add = add_compact(parser, "when, and where to", WHEN)
    add("--estimate", action="store_true")
    add("--tflops", type=positive)
    add("--until", type=lambda text: 0.0 if text == "0" else positive(text))
    for name in ("--cells", "--page", "--output"):
        add(name, type=path)
    add("--device", default="auto")
    add_corpus_arguments(parser)
    add_run_arguments(parser, None)


def workplace(options: argparse.Namespace, output: str) -> Workplace:
    """The device, the corpus that the options name, and the store, with the trainings of --cells brought into it.

    Args:
        output: the default result file.

    Raises:
        ValueError: there is no such device here.
    """
    choice, where, device = corpus_choice(options), run_options(options), find_device(options.device)
    if device.startswith("cuda") and options.workers is None and options.cluster is None:
        where = replace(where, workers=1)  # two processes on one GPU only wait for each other
    if options.until is not None and not where.resume:
        raise UsageError("--until stops a run that the same command resumes, but --no-resume begins anew: give one")
    written = options.output or Path(output)
    stores, read = [where.store, options.corpora], named_texts(options)
    envelope.check_outputs(written, updated=options.cells, page=options.page, stores=stores, read=read)
    envelope.check_outputs(options.corpora / "corpus.json")
    os.environ[CORPORA_VARIABLE] = str(options.corpora.absolute())  # for this process and those it starts
    corpus = open_corpus(choice, options.corpora)
    pinned = PinnedCorpus(choice.anywhere, corpus.digest)
    again = f"{options.again} --device cuda" if device != "cpu" and "--device" not in options.again else options.again
    if options.cells is not None and options.cells.exists():
        brought = bring(options.cells, CellStore(where.store))
        note(f"{options.cells}: {brought} trainings that the store lacked")
    compiled = compiles(device, options.compile)
    return Workplace(again, device, compiled, where, corpus, pinned, written, options.cells, options.page)


def write_results(
    place: Workplace, progress: StudyRun[Any], result: Mapping[str, Any] | None, measured: Mapping[str, Any] | None
) -> None:
    """Writes the result file and, on request, the cells and the page with its readings.

    Args:
        progress: how far the study has come.
        result, measured: of the study, and its readings; None while there is nothing to say.
    """
    written = []
    if progress.todo:
        envelope.show(f"not finished: {len(progress.todo)} trainings are next; the same command goes on")
    if result is not None:
        envelope.write(place.output, result)
        written.append(place.output)
    if place.cells is not None:
        hand_on(place.cells, CellStore(place.where.store), [cell.key for cell in progress.computed])
        written.append(place.cells)
    if place.page is not None and result is not None and measured is not None:
        beside = place.page.with_suffix(".json")
        envelope.write(beside, measured)
        written += [*write_page(place.page, result), beside]
    note(f"wrote {', '.join(map(str, written)) or 'nothing'}")
