"""What `second-step` and `dial` share: studies in which every row finds its own learning rate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from cemverify.console.errors import UsageError
from cemverify.console.parsing import path, positive
from cemverify.results import envelope
from cemverify.runs import CellStore, RunOptions, add_run_arguments, bring, hand_on
from synthetic.corpora.choice import PinnedCorpus, open_corpus
from synthetic.corpora.corpus import Corpus
from synthetic.language.commands.arguments import (
    Command,
    add_compact,
    add_corpus_arguments,
    changes_words,
    corpus_choice,
    corpus_words,
    named_texts,
    recipe_changes,
    run_on,
    shape,
)
from synthetic.language.training.machine import compiler_missing

if TYPE_CHECKING:
    from synthetic.language.tuned.plan import SecondStepPlan
    from synthetic.language.tuned.study import State

# A study adds its own lines before these.
WHEN = """\
--until MINUTES       stop cleanly after that time and show what there is; 0 trains nothing
--cells FILE          read finished trainings from it, and write all of them to it at the end
--page FILE           a page in Markdown; --output FILE; --device cpu or cuda; --compile: faster
"""


@dataclass(frozen=True)
class Workplace:
    """Where a study runs.

    Attributes:
        device: "cpu" or "cuda". where: workers and store. output: the result file.
        corpus: opened. pinned: the same, for workers to open.
    """

    device: str
    where: RunOptions
    output: Path
    corpus: Corpus
    pinned: PinnedCorpus

    @property
    def name(self) -> str:
        """The corpus, in a sentence."""
        return f"the {self.corpus.name}"


def add_when(parser: Command, first: str = "") -> Callable[..., None]:
    """The options that say when to stop and where to write, those of the corpus, and those of the run.

    Args:
        first: lines of the help that come before; the function that is returned adds their options.
    """
    add = add_compact(parser, "when, and where to", first + WHEN)
    add("--compile", action="store_true")
    add("--until", type=_minutes)
    for name in ("--cells", "--page", "--output"):
        add(name, type=path)
    add("--device", default="auto")
    add_corpus_arguments(parser)
    add_run_arguments(parser, None)
    parser.checks.append(_check)
    return add


def workplace(options: argparse.Namespace, output: str) -> Workplace:
    """The device, the store and the corpus that the options name.

    Args:
        output: the result file if the options name none.

    Raises:
        UsageError: there is no such device or corpus, or nothing that compiles.
        cemverify.results.envelope.ResultError: a file cannot be written.
    """
    from synthetic.language.paper.cells import inherit_corpora  # matplotlib is heavy to import

    choice, (device, where) = corpus_choice(options), run_on(options)
    if options.until is not None and not where.resume:
        raise UsageError(
            "--until stops a run that the same command goes on with, and --no-resume begins anew: give one"
        )
    if options.compile and (missing := compiler_missing(device)) is not None:
        raise UsageError(f"{missing}; leave out --compile")
    written = options.output or Path(output)
    stores, read = [where.store, options.corpora], named_texts(options)
    envelope.check_outputs(written, updated=options.cells, page=options.page, stores=stores, read=read)
    inherit_corpora(options.corpora)
    corpus = open_corpus(choice, options.corpora)
    return Workplace(device, where, written, corpus, PinnedCorpus(choice.anywhere, corpus.digest))


def conduct(options: argparse.Namespace, asked: SecondStepPlan, place: Workplace) -> State:
    """Reads the cells that were handed on, computes what is missing, and says how far the study is.

    Raises:
        UsageError: the context is longer than the data, or a cell failed.
    """
    from synthetic.language.tuned import study

    study.check_fits(asked, place.corpus)
    if options.cells is not None and options.cells.exists():
        brought = bring(options.cells, CellStore(place.where.store))
        print(f"{options.cells}: {brought} trainings that the store lacked", file=sys.stderr)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    return study.conduct(asked, place.pinned, place.device, place.where, options.until)


def write(
    options: argparse.Namespace,
    place: Workplace,
    found: State,
    result: Mapping[str, Any],
    readings: Mapping[str, Any],
    write_page: Callable[[Path], Sequence[Path]],
) -> None:
    """Writes the result file, the cells, and the page with its readings, as far as they are asked for.

    Raises:
        cemverify.results.envelope.ResultError: something cannot be written.
    """
    from synthetic.language.tuned import study

    if found.todo:
        envelope.show(f"not finished: {len(found.todo)} trainings are next; the same command goes on")
    envelope.write(place.output, result)
    written = [place.output]
    if options.cells is not None:
        hand_on(options.cells, CellStore(place.where.store), study.keys(found))
        written.append(options.cells)
    if options.page is not None:
        beside = options.page.with_suffix(".json")
        envelope.write(beside, readings)
        written += [*write_page(options.page), beside]
    print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)


def last_words(options: argparse.Namespace, device: str) -> list[str]:
    """The end of the command that makes the same tables again."""
    words = ["--rows", *options.rows] if options.rows else []
    words += changes_words(recipe_changes(options), *shape(options))
    words += corpus_words(corpus_choice(options))
    if device != "cpu":
        words += ["--device", device]
    for name in ("cells", "page"):
        if getattr(options, name) is not None:
            words += [f"--{name}", str(getattr(options, name))]
    return words


def _minutes(text: str) -> float:
    return 0.0 if text == "0" else positive(text)


def _check(options: argparse.Namespace) -> None:
    from synthetic.language.tuned.designs import REPLACED

    if options.replaced not in REPLACED:
        raise UsageError(f"unknown layers {options.replaced!r}; choose from {', '.join(REPLACED)}")
    if options.shard is not None:
        raise UsageError(
            "this study decides what to train next from what it has found, so it cannot be cut into shards; give"
            " machines different --seed and --replaced, and bring their --cells together"
        )
