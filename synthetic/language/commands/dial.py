"""`python -m synthetic language dial`: one model for every number of steps, against a model for each."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from cemverify import results
from cemverify.parsing import positive, seed, whole
from cemverify.runs import CellStore, add_run_arguments, bring, hand_on, run_options
from cemverify.tables import terminal
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus, chain_of, open_corpus
from synthetic.corpora.corpus import Corpus
from synthetic.language.commands.arguments import (
    Command,
    add_compact,
    add_corpus_arguments,
    add_recipe_arguments,
    check_tuned,
    corpus_choice,
    minutes,
    recipe_changes,
    shape,
    tuned_device,
    tuned_words,
)
from synthetic.language.paper.studies import tiny_dims

SUMMARY = "depth as a dial: one model for every number of steps, against a model for each"
USAGE = "[--replaced LAYER] [--corpus hidden] [option ...]"

DESCRIPTION = """\
Trains one model with T drawn for each batch, and one model for each of T = 1, 2, 4 and 8, all of
size tiny, and scores each with 1 to 16 steps. For a chain the smallest possible number of bits is
known, and the tables show how far above it each model is.
"""

HOW = """\
--replaced LAYER      mlp (default), attention or full: which layers are CEM's
--per-parameter N     tokens for each parameter of Llama, the same for all rows (default: 5)
--rows NAME ...       only these rows, as in the tables: 'T = 4' 'T drawn, steps sum to 1'
--seeds N --seed S    judge with N seeds, from S on (default: 3 from 0); each --learning-rate is found
other numbers:        --steps N --batch B --context J --accumulate N --dim D --layers L --heads K
"""

WHERE = """\
--until MINUTES       stop cleanly after that time and show what there is; 0 trains nothing
--cells FILE          read finished trainings from it, and write all of them to it at the end
--page FILE           a page in Markdown; --output FILE; --device cpu or cuda; --compile: faster
"""

EPILOG = """\
example: python -m synthetic language dial --corpus hidden --compile --page out/dial.md
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = add_recipe_arguments(parser, "the study", HOW)
    add("--replaced", default="mlp")
    add("--per-parameter", type=positive, default=5.0)
    add("--rows", nargs="+", default=())
    add("--seeds", type=whole(1), default=3)
    add("--seed", type=seed, default=0)
    add_where = add_compact(parser, "when, and where to", WHERE)
    add_where("--compile", action="store_true")
    add_where("--until", type=minutes)
    add_where("--cells", type=Path)
    add_where("--page", type=Path)
    add_where("--output", type=Path)
    add_where("--device", default="auto")
    add_corpus_arguments(parser)
    add_run_arguments(parser, None)
    parser.checks.append(check_tuned)


def run(options: argparse.Namespace) -> int:
    """Goes on with the study, prints its tables, writes its result file and its page; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.ResultError: something cannot be written.
    """
    from synthetic.language.dial import measured, page  # scipy and matplotlib are heavy to import
    from synthetic.language.dial.plan import dial_plan
    from synthetic.language.dial.summary import summarise
    from synthetic.language.paper.cells import inherit_corpora
    from synthetic.language.tuned import study
    from synthetic.language.tuned.plan import plan
    from synthetic.measured import readings

    choice = corpus_choice(options)
    where = run_options(options)
    device = tuned_device(options)
    if device.startswith("cuda") and options.workers is None and options.cluster is None:
        where = replace(where, workers=1)  # two processes on one GPU only wait for each other
    base = plan(
        options.replaced,
        choice.vocabulary,
        dims=tiny_dims(*shape(options)) if any(shape(options)) else None,
        per_parameter=options.per_parameter,
        changes=recipe_changes(options),
        seeds=options.seeds,
        seed=options.seed,
        compiled=options.compile,
    )
    asked = dial_plan(base, tuple(options.rows))
    output = options.output or Path(f"out/dial-{asked.replaced}.json")
    for path in (output, options.page, options.cells):
        if path is not None:
            results.check_writable(path)
    inherit_corpora(options.corpora)
    corpus = open_corpus(choice, options.corpora)
    study.check_fits(asked, corpus)
    if options.cells is not None and options.cells.exists():
        brought = bring(options.cells, CellStore(where.store))
        print(f"{options.cells}: {brought} trainings that the store lacked", file=sys.stderr)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    again = _command(options, device)
    maker = results.Maker.now(again, asdict(asked), asked.seed, device)
    pinned = PinnedCorpus(choice.anywhere, corpus.digest)
    found = study.conduct(asked, pinned, device, where, options.until)
    summary, floor = summarise(asked, found), _source_bits(choice, corpus, asked.recipe.context)
    shown = page.all_tables(asked, found, summary, corpus.unit, floor)
    results.show(terminal(shown))
    results.show("\n" + " ".join(page.sentences(summary, corpus.unit, floor)))
    if found.todo:
        results.show(f"not finished: {len(found.todo)} trainings are next; the same command goes on")
    figures = measured.payload(asked, f"the {corpus.name}", corpus.unit, floor, found, summary)
    results.write(output, results.result("readings", maker, shown, figures))
    written = [output]
    if options.cells is not None:
        hand_on(options.cells, CellStore(where.store), study.keys(found))
        written.append(options.cells)
    if options.page is not None:
        name = f"the {corpus.name}"
        written += page.write_page(options.page, again, asked, name, corpus.unit, floor, found, summary)
        beside = options.page.with_suffix(".json")
        results.write(beside, readings(maker, "One model for all T over a model for each", figures))
        written.append(beside)
    print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
    return 0


def _source_bits(choice: CorpusChoice, corpus: Corpus, context: int) -> float | None:
    """Bits that no predictor can do without on the windows that judge; None of text."""
    from synthetic.language.tuned.cells import part_windows
    from synthetic.language.tuned.plan import JUDGING_WINDOWS

    chain = chain_of(choice)
    if chain is None:
        return None
    windows = part_windows(corpus.validation.tokens, "judging", JUDGING_WINDOWS, context)
    return float(chain.surprisals(windows).mean()) * corpus.validation.tokens_per_byte


def _command(options: argparse.Namespace, device: str) -> str:
    """The command that makes the same tables again."""
    words = ["python", "-m", "synthetic", "language", "dial", "--replaced", options.replaced]
    words += ["--per-parameter", f"{options.per_parameter:g}", "--seeds", str(options.seeds)]
    if options.seed:
        words += ["--seed", str(options.seed)]
    words += ["--compile"] if options.compile else []
    return shlex.join([*words, *tuned_words(options, device)])
