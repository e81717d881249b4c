"""`python -m synthetic language study`: one of the paper's experiments: estimate, cells, tables, statements, page."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import asdict
from pathlib import Path

import torch

from cemverify.cem import presets as paper
from cemverify.console.parsing import path, positive, seed, whole
from cemverify.results import envelope, provenance
from cemverify.results.tables import terminal
from cemverify.runs import RunOptions, add_run_arguments
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus, open_corpus
from synthetic.language.commands.arguments import (
    NUMBERS_HELP,
    Command,
    add_compact,
    add_corpus_arguments,
    add_recipe_arguments,
    changes_words,
    corpus_choice,
    corpus_words,
    named_texts,
    recipe_changes,
    run_on,
    shape,
)
from synthetic.language.paper.studies import SIZES, STUDIES, TINY, StudyChoice
from synthetic.language.training.paths import words

SUMMARY = "repeat one of the paper's experiments, with several seeds, and read its statements"
USAGE = "NAME [--size SIZE] [--seeds N] [--corpus NAME] [option ...]"

DESCRIPTION = """\
Trains every model of an experiment with several seeds, compares them at equal tokens, at equal
FLOPs and at equal parameters, and reads the paper's statements against that. Every training is
kept: kill it at any moment, the same command goes on from there.
"""

EXPERIMENTS = "\n".join(f"{name:<22}{found.title} ({found.figure})" for name, found in STUDIES.items())

HOW = f"""\
--size SIZE           {", ".join(SIZES)}; tiny (the default) trains on a laptop
--seeds N --seed S    N trainings of each model, from seed S on (default: 6 from 0; 1 beyond tiny)
--estimate            say what it takes and do nothing; --tflops N: useful TFLOP/s of your device
--page FILE           also a page in Markdown; --output FILE; --device auto, cpu or cuda
{NUMBERS_HELP} (tiny)"""

EPILOG = """\
example: python -m synthetic language study recursion --size 86M --estimate
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add_compact(parser, "the experiments", EXPERIMENTS)("experiment", metavar="NAME")
    add = add_recipe_arguments(parser, "the study", HOW)
    add("--size", default=TINY)
    add("--seeds", type=whole(1))
    add("--seed", type=seed, default=0)
    add("--estimate", action="store_true")
    add("--tflops", type=positive)
    add("--device", default="auto")
    add("--output", type=path)
    add("--page", type=path)
    add_corpus_arguments(parser)
    add_run_arguments(parser, None)


def run(options: argparse.Namespace) -> int:
    """Conducts the study, prints its tables, writes its result file and its page; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.envelope.ResultError: something cannot be written.
    """
    choice = StudyChoice(
        options.experiment, options.size, options.seeds, options.seed, recipe_changes(options), *shape(options)
    )
    corpus = corpus_choice(options)
    if options.estimate:
        return _estimate(choice, corpus, options.tflops)
    device, where = run_on(options)
    output = options.output or Path(f"out/language-{choice.name}.json")
    stores, read = [where.store, options.corpora], named_texts(options)
    envelope.check_outputs(output, page=options.page, stores=stores, read=read)
    return _conduct(choice, corpus, device, where, options.corpora, output, options.page, options.tflops)


def _conduct(
    choice: StudyChoice,
    corpus_asked: CorpusChoice,
    device: str,
    where: RunOptions,
    corpora: Path,
    output: Path,
    page: Path | None,
    tflops: float | None,
) -> int:
    from synthetic.language.paper import study, tables  # scipy and matplotlib are heavy to import
    from synthetic.language.paper.cells import inherit_corpora
    from synthetic.language.paper.estimates import forecasts, speed_of
    from synthetic.language.paper.measured import payload
    from synthetic.language.paper.page import write_page
    from synthetic.measured import readings

    inherit_corpora(corpora)
    choice.plan(_expected_vocabulary(choice, corpus_asked))  # a wrong name or number needs no corpus to be told
    corpus = open_corpus(corpus_asked, corpora)
    asked = choice.plan(corpus.vocabulary)
    study.check_fits(asked, corpus)
    if asked.size != TINY:
        speed = speed_of(asked, tflops)
        print(terminal([tables.costs(asked, forecasts(asked, speed), speed.words)]), file=sys.stderr)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    again = command(choice, corpus_asked, device, page)
    maker = provenance.Maker.now(again, asdict(asked), asked.seed, device)
    found = study.conduct(asked, PinnedCorpus(corpus_asked.anywhere, corpus.digest), corpus.unit, device, where)
    envelope.show(terminal(found.tables))
    envelope.show(f"\n{words(study.paths_of(asked))}")
    for statement in found.statements:
        envelope.show(f"\nthe paper: {statement.text}\n     here: {statement.found}\n  reading: {statement.reading}")
    envelope.write(output, envelope.result("language", maker, found.tables, study.payload(asked, corpus, found)))
    print(f"wrote {output}", file=sys.stderr)
    if page is not None:
        name = f"the {corpus.name}, {corpus.train.bytes:,} {corpus.unit}s to learn from"
        written = write_page(page, again, asked, name, corpus.unit, found.rows, found.statements, found.tables)
        figures = page.with_suffix(".json")
        measured = payload(asked, f"the {corpus.name}", corpus.unit, found.rows)
        envelope.write(figures, readings(maker, "Ratios at equal tokens", measured))
        written.append(figures)
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
    return 0


def command(choice: StudyChoice, corpus: CorpusChoice, device: str, page: Path | None) -> str:
    """The command that makes the same tables again."""
    words = ["python", "-m", "synthetic", "language", "study", choice.name, "--size", choice.size]
    words += corpus_words(corpus)
    if choice.seeds is not None:
        words += ["--seeds", str(choice.seeds)]
    words += changes_words(choice.recipe, choice.dim, choice.layers, choice.heads)
    if page is not None:
        words += ["--page", str(page)]
    if choice.seed:
        words += ["--seed", str(choice.seed)]
    if device != "cpu":
        words += ["--device", device]
    return shlex.join(words)


def _estimate(choice: StudyChoice, corpus: CorpusChoice, tflops: float | None) -> int:
    from synthetic.language.paper import tables
    from synthetic.language.paper.estimates import forecasts, speed_of

    asked = choice.plan(_expected_vocabulary(choice, corpus))
    speed = speed_of(asked, tflops)
    envelope.show(terminal([tables.costs(asked, forecasts(asked, speed), speed.words)]))
    tokens = asked.recipe.tokens
    envelope.show(
        f"\nOne training reads {tokens:,} tokens, drawn with replacement; that many take "
        f"{2 * tokens / 1e9:,.2f} GB on disk."
        " The memory is that of weights, gradients and optimiser state, without activations. Causal "
        "attention counts as"
        " if it were dense. CEM layers that are not compiled reach a smaller share of a GPU's speed than "
        "Llama's; pass"
        " the speed that yours reach with --tflops."
    )
    return 0


def _expected_vocabulary(choice: StudyChoice, corpus: CorpusChoice) -> int:
    """Of a corpus that is not opened: the paper's at its sizes, else what the choice says."""
    return corpus.vocabulary if choice.size == TINY else paper.VOCABULARY
