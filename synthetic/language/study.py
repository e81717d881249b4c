"""`python -m synthetic language study`: one of the paper's experiments: estimate, cells, tables, statements, page."""

from __future__ import annotations

import argparse
import sys
from dataclasses import asdict

import torch

from cemverify.cem import presets as paper
from cemverify.console.parsing import seed, whole
from cemverify.results import envelope, provenance
from cemverify.results.envelope import Table
from cemverify.results.tables import terminal
from synthetic.language.arguments import (
    NUMBERS_HELP,
    Command,
    add_recipe_arguments,
    corpus_choice,
    recipe_changes,
    shape,
)
from synthetic.language.places import add_when, workplace, write_results
from synthetic.studies.engine.conduct import conduct
from synthetic.studies.engine.estimates import speed_at
from synthetic.studies.engine.readings import readings
from synthetic.studies.paper import study
from synthetic.studies.paper.estimates import costs, forecasts
from synthetic.studies.paper.rows import SIZES, STUDIES, StudyChoice, StudyPlan
from synthetic.studies.paper.sentences import readings as figures
from synthetic.training.frames import TINY
from synthetic.training.paths import words

SUMMARY = "repeat one of the paper's experiments, with several seeds, and read its statements"
USAGE = "NAME [--size SIZE] [--seeds N] [option ...]"

DESCRIPTION = """\
Trains every model of an experiment, compares them at equal tokens, FLOPs and parameters, and reads the
paper's statements against that. Every training is kept, and the same command goes on from there.
"""

EXPERIMENTS = "\n".join(f"{name:<22}{found.title} ({found.figure})" for name, found in STUDIES.items())

HOW = f"""\
{EXPERIMENTS}
--size SIZE           {", ".join(SIZES)}; tiny (the default) trains on a laptop
--seeds N --seed S    N trainings of each model, from seed S on (default: 6 from 0; 1 beyond tiny)
{NUMBERS_HELP} (tiny)"""

EPILOG = """\
example: python -m synthetic language study recursion --size 86M --estimate
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = add_recipe_arguments(parser, "the study", HOW)
    add("experiment", metavar="NAME")
    add("--size", default=TINY)
    add("--seeds", type=whole(1))
    add("--seed", type=seed, default=0)
    add_when(parser, "")


def run(options: argparse.Namespace) -> int:
    """Conducts the study, prints its tables, writes its result file and its page; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.envelope.ResultError: something cannot be written.
    """
    choice = StudyChoice(
        options.experiment, options.size, options.seeds, options.seed, recipe_changes(options), *shape(options)
    )
    # a wrong name or number needs no corpus to be told
    asked = choice.plan(corpus_choice(options).vocabulary if choice.size == TINY else paper.VOCABULARY)
    if options.estimate:
        _estimate(asked, options.tflops)
        return 0
    place = workplace(options, f"out/language-{choice.name}.json")
    corpus = place.corpus
    asked = choice.plan(corpus.vocabulary)
    study.check_fits(asked, corpus)
    if asked.size != TINY:
        print(terminal([_costs(asked, options.tflops)]), file=sys.stderr)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    maker = provenance.Maker.now(place.again, asdict(asked), asked.seed, place.device)
    place.bring()
    state = conduct(lambda look: study.state(asked, place.pinned, place.device, look), place.where, options.until)
    if state.todo:
        write_results(place, state, None, None)
        return 0
    found = study.findings(
        asked, f"{place.name}, {corpus.train.bytes:,} {corpus.unit}s to learn from", corpus.unit, state
    )
    shown = found.page.tables
    envelope.show(terminal(shown))
    envelope.show(f"\n{words(study.paths_of(asked))}")
    for statement in found.statements:
        envelope.show(f"\nthe paper: {statement.text}\n     here: {statement.found}\n  reading: {statement.reading}")
    measured = readings(maker, "Ratios at equal tokens", figures(asked, place.name, corpus.unit, found.rows))
    write_results(
        place, state, envelope.result("language", maker, shown, study.payload(asked, corpus, found)), measured
    )
    return 0


def _costs(asked: StudyPlan, tflops: float | None) -> Table:
    speed = speed_at(asked.size != TINY, tflops)
    return costs(asked, forecasts(asked, speed), speed.words)


def _estimate(asked: StudyPlan, tflops: float | None) -> None:
    envelope.show(terminal([_costs(asked, tflops)]))
    tokens = asked.recipe.tokens
    envelope.show(
        f"\nOne training reads {tokens:,} tokens, drawn with replacement; that many take {2 * tokens / 1e9:,.2f} GB"
        " on disk. The memory is that of weights, gradients and optimiser state, without activations. Causal"
        " attention counts as if it were dense. CEM layers that are not compiled reach a smaller share of a GPU's"
        " speed than Llama's; pass the speed that yours reach with --tflops."
    )
