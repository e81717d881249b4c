"""`python -m synthetic language dial`: one model for every number of steps, against a model for each."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import asdict

from cemverify.console.parsing import positive, seed, whole
from cemverify.results import envelope, provenance
from cemverify.results.tables import terminal
from synthetic.corpora.choice import CorpusChoice, chain_of
from synthetic.corpora.corpus import Corpus
from synthetic.language.commands.arguments import Command, add_recipe_arguments, corpus_choice, recipe_changes, shape
from synthetic.language.commands.tuned import add_when, conduct, last_words, workplace, write
from synthetic.language.paper.studies import tiny_dims

SUMMARY = "depth as a dial: one model for every number of steps, against a model for each"
USAGE = "[--replaced LAYER] [--corpus hidden] [option ...]"

DESCRIPTION = """\
Trains one model with T drawn for each batch, and one model for each of T = 1, 2, 4 and 8, all of
size tiny and each at its own learning rate. Scores each with 1 to 16 steps, and with tokens that stop
once their steps lower the energy by little. For a chain the smallest possible number of bits is
known, and the tables show how far above it each model is.
"""

HOW = """\
--replaced LAYER      mlp (default), attention or full: which layers are CEM's
--per-parameter N     tokens for each parameter of Llama, the same for all rows (default: 5)
--rows NAME ...       only these rows, as in the tables: 'T = 4' 'T drawn, steps sum to 1'
--seeds N --seed S    judge with N seeds, from S on (default: 3 from 0)
other numbers:        --steps N --batch B --context J --accumulate N --dim D --layers L --heads K
"""

EPILOG = """\
example: python -m synthetic language dial --corpus hidden --compile --page out/dial.md
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = add_recipe_arguments(parser, "the study", HOW, finds_rates=True)
    add("--replaced", default="mlp")
    add("--per-parameter", type=positive, default=5.0)
    add("--rows", nargs="+", default=())
    add("--seeds", type=whole(1), default=3)
    add("--seed", type=seed, default=0)
    add_when(parser)


def run(options: argparse.Namespace) -> int:
    """Goes on with the study, prints its tables, writes its result file and its page; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.envelope.ResultError: something cannot be written.
    """
    from synthetic.language.dial import measured, page  # scipy and matplotlib are heavy to import
    from synthetic.language.dial.plan import dial_plan
    from synthetic.language.dial.summary import summarise
    from synthetic.language.tuned.plan import plan
    from synthetic.measured import readings

    choice = corpus_choice(options)
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
    place = workplace(options, f"out/dial-{asked.replaced}.json")
    corpus = place.corpus
    again = _command(options, place.device)
    maker = provenance.Maker.now(again, asdict(asked), asked.seed, place.device)
    found = conduct(options, asked, place)
    summary, floor = summarise(asked, found), _source_bits(choice, corpus, asked.recipe.context)
    shown = page.all_tables(asked, found, summary, corpus.unit, floor)
    envelope.show(terminal(shown))
    envelope.show("\n" + " ".join(page.sentences(summary, corpus.unit, floor)))
    figures = measured.payload(asked, place.name, corpus.unit, floor, found, summary)
    write(
        options,
        place,
        found,
        envelope.result("readings", maker, shown, figures),
        readings(maker, "One model for all T over a model for each", figures),
        lambda path: page.write_page(path, again, asked, place.name, corpus.unit, floor, found, summary),
    )
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
    return shlex.join([*words, *last_words(options, device)])
