"""`python -m synthetic language second-step`: whether T steps beat one, every row at its own best recipe."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import asdict

from cemverify.cem import presets as paper
from cemverify.console.errors import UsageError
from cemverify.console.parsing import positive, seed, whole
from cemverify.results import envelope, provenance
from cemverify.results.tables import terminal
from synthetic.language.commands.arguments import Command, add_recipe_arguments, corpus_choice, recipe_changes, shape
from synthetic.language.commands.tuned import add_when, conduct, last_words, workplace, write
from synthetic.language.paper.studies import TINY, tiny_dims
from synthetic.language.training.paths import words

SUMMARY = "does a second step pay? every row tuned by itself, judged with fresh seeds on other text"
USAGE = "[--replaced LAYER] [--until MINUTES] [option ...]"

DESCRIPTION = """\
Trains T = 1, T = 2, and the controls that a gain must beat: T = 1 with a longer step, wider, applied
twice, and with other first weights. Each finds its own learning rate by the same rule and is judged
with fresh seeds on other text. All trainings are kept: the same command goes on where it stopped.
"""

HOW = """\
--replaced LAYER      attention (default), mlp or full: which layers are CEM's; --depth T (default: 2)
--size SIZE           tiny (default), small (a million parameters, context 256), 86M, 108M, 134M, 162M
--per-parameter N     tokens for each parameter of Llama, the same for all rows (default: 20)
--rows NAME ...       only these rows, as in the tables: 'T = 1' 'T = 1, eta 2' 'T = 2, eta 1/2'
--beyond              also rows that the paper does not have: momentum, a P for each step ...
--seeds N --seed S    judge with N seeds, from S on (default: 8 from 0)
--tuning N            find rates in trainings of 1/N of the length (default: 2); --tuning-seeds N
other numbers:        --steps N --batch B --context J --accumulate N --dim D --layers L --heads K
"""

ESTIMATE = """\
--estimate            print power analysis and hours, and train nothing; --tflops N: of your device
"""

EPILOG = """\
example: python -m synthetic language second-step --replaced mlp --until 60 --cells mlp.cells.jsonl
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = add_recipe_arguments(parser, "the study", HOW, finds_rates=True)
    add("--replaced", default="attention")
    add("--size", default=TINY)
    add("--per-parameter", type=positive, default=20.0)
    add("--depth", type=whole(2), default=2)
    add("--rows", nargs="+", default=())
    add("--beyond", action="store_true")
    add("--seeds", type=whole(1), default=8)
    add("--seed", type=seed, default=0)
    add("--tuning-seeds", type=whole(1), default=1)
    add("--tuning", type=whole(1), default=2)
    add = add_when(parser, ESTIMATE)
    add("--estimate", action="store_true")
    add("--tflops", type=positive)


def run(options: argparse.Namespace) -> int:
    """Goes on with the study, prints its tables, writes its result file and its page; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.envelope.ResultError: something cannot be written.
    """
    from synthetic.language.paper.estimates import speed_at  # scipy and matplotlib are heavy to import
    from synthetic.language.tuned import measured, study, tables
    from synthetic.language.tuned.page import write_page
    from synthetic.language.tuned.plan import SecondStepPlan, plan
    from synthetic.language.tuned.summary import summarise
    from synthetic.measured import readings

    choice = corpus_choice(options)
    dims = tiny_dims(*shape(options)) if any(shape(options)) else None
    if dims is not None and options.size != TINY:
        raise UsageError(f"size {options.size} has its own dimensions: leave out --dim, --layers and --heads")

    def planned(vocabulary: int) -> SecondStepPlan:
        return plan(
            options.replaced,
            vocabulary,
            size=options.size,
            dims=dims,
            depth=options.depth,
            per_parameter=options.per_parameter,
            changes=recipe_changes(options),
            names=tuple(options.rows),
            with_beyond=options.beyond,
            seeds=options.seeds,
            seed=options.seed,
            tuning_seeds=options.tuning_seeds,
            tuning=options.tuning,
            compiled=options.compile,
        )

    expected = paper.VOCABULARY if options.size in paper.SIZES else choice.vocabulary
    asked = planned(expected)  # a wrong name or number needs no corpus to be told
    if options.estimate:
        speed = speed_at(options.size in paper.SIZES, options.tflops)
        envelope.show(terminal([tables.need(asked, None), tables.costs(asked, speed)]))
        return 0
    place = workplace(options, f"out/second-step-{asked.replaced}-{asked.size}.json")
    corpus = place.corpus
    asked = planned(corpus.vocabulary)
    print(terminal([tables.need(asked, None)]), file=sys.stderr)
    again = _command(options, place.device)
    maker = provenance.Maker.now(again, asdict(asked), asked.seed, place.device)
    found = conduct(options, asked, place)
    summary = summarise(asked, found)
    shown = [
        *tables.beyond(asked, summary),
        tables.models(asked, found, summary, corpus.unit),
        tables.pairs(summary),
        tables.tuning(found, corpus.unit),
    ]
    envelope.show(terminal([*shown, tables.steps(found)]))
    envelope.show(f"\n{words(study.paths_of(asked), compiled=asked.compiled)}")
    envelope.show(f"\nthe second step: {summary.verdict}; {summary.why}")
    figures = measured.payload(asked, place.name, corpus.unit, found, summary)
    everything = {**figures, **measured.everything(found, summary), "paths": study.paths_of(asked)}
    write(
        options,
        place,
        found,
        envelope.result("readings", maker, shown, everything),
        readings(maker, "Ratios at equal tokens", figures),
        lambda path: write_page(path, again, asked, place.name, corpus.unit, found, summary),
    )
    return 0


def _command(options: argparse.Namespace, device: str) -> str:
    """The command that makes the same tables again."""
    words = ["python", "-m", "synthetic", "language", "second-step", "--replaced", options.replaced]
    words += ["--size", options.size, "--per-parameter", f"{options.per_parameter:g}"]
    words += ["--seeds", str(options.seeds)]
    usual = {"depth": 2, "seed": 0, "tuning_seeds": 1, "tuning": 2}
    for name, value in usual.items():
        if getattr(options, name) != value:
            words += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    words += [f"--{flag}" for flag in ("beyond", "compile") if getattr(options, flag)]
    return shlex.join([*words, *last_words(options, device)])
