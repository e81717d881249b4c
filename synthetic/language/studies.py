"""`python -m synthetic language study NAME`: conducts and reports a study."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, replace

import torch

from cemverify.cem import presets as paper
from cemverify.conformance.implementations.contract import attribute
from cemverify.console.errors import UsageError, one_of
from cemverify.console.parsing import positive, seed, whole
from cemverify.console.streams import note
from cemverify.results import envelope
from cemverify.results.envelope import Table
from cemverify.results.provenance import Maker
from cemverify.results.tables import terminal
from synthetic.corpora.choice import CorpusChoice, chain_of
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.tokens import Batches
from synthetic.language.arguments import (
    NUMBERS_HELP,
    Command,
    add_recipe_arguments,
    corpus_choice,
    recipe_changes,
    shape,
)
from synthetic.language.places import add_when, workplace, write_results
from synthetic.studies import depth_dial, fixed_memory, second_step
from synthetic.studies.engine import tables, tuning
from synthetic.studies.engine.conduct import conduct
from synthetic.studies.engine.designs import REPLACED
from synthetic.studies.engine.plan import JUDGING_WINDOWS, SIZES, Plan
from synthetic.studies.engine.readings import readings
from synthetic.studies.engine.study import Study, StudyOutcome, everything, figures
from synthetic.studies.engine.trials import part_windows
from synthetic.studies.paper import EXPERIMENTS
from synthetic.training.cost import words
from synthetic.training.frames import PRECONDITIONERS, TINY, tiny_dims

STUDIES: Mapping[str, Study] = {
    **EXPERIMENTS,
    **{study.name: study for study in (second_step.STUDY, fixed_memory.STUDY, depth_dial.STUDY)},
}

SUMMARY = "a study's rows, trained and judged with several seeds"
USAGE = "NAME [--until MINUTES] [option ...]"
DESCRIPTION = """\
Trains the rows of a study, compares them, and says what follows. Where rows find their own rates,
fresh seeds judge them on other text. All trainings are kept: the same command goes on from there.
"""
EPILOG = "example: python -m synthetic language study recursion --size 86M --estimate\n"

_HOW = f"""\
{", ".join(EXPERIMENTS)}:
                      the paper's experiments, by its recipe
{"".join(f"{name:<22}{study.summary}{chr(10)}" for name, study in STUDIES.items() if not study.papers)}\
MODULE:STUDY          one of your own: docs/how-to/new-study.md
--size SIZE           {", ".join(SIZES)}; tiny is the default
--seeds N --seed S    judge with N seeds, from S on
--compile             train through torch.compile, as on a GPU; --no-compile
{NUMBERS_HELP}
Of studies that are not the paper's:
--replaced LAYER      attention, mlp or full are CEM's; --depth T
--per-parameter N     tokens for each parameter of Llama, the same for all rows
--rows NAME ...       only these of the rows, which --estimate lists with what each is there for;
                      --beyond: also those that are beyond the paper
--tuning N            find rates in trainings of 1/N of the length; --tuning-seeds N
--preconditioner P    of CEM's layers: identity, diagonal or low-rank"""
_NOT_OF_THE_PAPERS = (
    *("replaced", "depth", "per_parameter", "rows", "beyond", "tuning", "tuning_seeds", "preconditioner"),
)

ABOUT_COSTS = """\
One training reads {tokens:,} tokens, drawn with replacement; that many take {disk:,.2f} GB on disk. What is kept
comes on top of the memory, for each window of a pass. Causal attention counts as if it were dense. CEM layers that
are not compiled reach a smaller share of a GPU's speed than Llama's; give the speed of yours with --tflops."""


def add_arguments(parser: Command, name: str | None = None) -> None:
    """The options of the command for the study `name`; if None, the command line names the study."""
    parser.description, parser.epilog = DESCRIPTION, EPILOG
    add = add_recipe_arguments(parser, "the study", _HOW)
    if name is None:
        add("study", metavar="NAME")
    parser.set_defaults(**({} if name is None else {"study": name}))
    add("--replaced")
    add("--size", default=TINY)
    add("--per-parameter", type=positive)
    add("--depth", type=whole(2))
    add("--rows", nargs="+", default=())
    add("--beyond", action="store_true")
    for option in ("--seeds", "--tuning-seeds", "--tuning"):
        add(option, type=whole(1))
    add("--seed", type=seed, default=0)
    add("--preconditioner")
    add("--compile", action=argparse.BooleanOptionalAction)
    add_when(parser)


def run(options: argparse.Namespace) -> int:
    """Starts or resumes the study, prints its tables, writes its result file and its page; returns the exit code."""
    study = study_of(options.study)
    choice = corpus_choice(options)
    # refuse a wrong name or number before a corpus is made
    plan = planned(study, options, paper.VOCABULARY if options.size in paper.SIZES else choice.vocabulary)
    if options.estimate:
        envelope.show(terminal([_costs(study, plan, options)]))
        envelope.show(f"\n{ABOUT_COSTS.format(tokens=plan.recipe.tokens, disk=2 * plan.recipe.tokens / 1e9)}")
        return 0
    output = study.name if plan.papers else f"{study.name}-{plan.replaced}-{plan.size}"
    place = workplace(options, f"out/{output}.json")
    corpus = place.corpus
    plan = replace(planned(study, options, corpus.vocabulary), compiled=place.compiled)
    # before any work: does a window fit?
    Batches(corpus.train.tokens, plan.seed, plan.recipe.batch, plan.recipe.context)
    part_windows(corpus.validation.tokens, "whole" if plan.papers else "judging", 1, plan.recipe.context)
    if plan.papers and plan.size != TINY:
        note(terminal([_costs(study, plan, options)]))
    maker = Maker.now(place.again, asdict(plan), plan.seed, place.device)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    progress = conduct(lambda: tuning.study(plan, place.pinned, place.device), place.where, options.until)
    if progress.todo and plan.papers:  # the paper's experiments are judged only as a whole
        write_results(place, progress, None, None)
        return 0
    floor = _source_bits(choice, corpus, plan)
    about = plan, progress.result, f"the {corpus.name}", corpus.unit, floor
    outcome = StudyOutcome(*about, len(progress.todo), place.device)
    findings = study.read(outcome)
    envelope.show(terminal(findings.page.tables))
    envelope.show(f"\n{words(tuning.paths_of(plan, place.device), compiled=plan.compiled)}")
    envelope.show(f"\n{findings.conclusion}")
    content = {**everything(study.name, outcome, findings), "corpus": corpus.describe()}
    result = envelope.result("readings", maker, findings.page.tables, content)
    write_results(place, progress, result, readings(maker, findings.title, figures(study.name, outcome, findings)))
    return 0


def study_of(name: str) -> Study:
    """The study with this name, or the one in a user's module."""
    if ":" not in name:
        return one_of("study", name, STUDIES)
    study = attribute(name)
    if not isinstance(study, Study):
        raise UsageError(
            f"{name} is of type {type(study).__name__}; name a `synthetic.studies.engine.study.Study`, as"
            " docs/how-to/new-study.md writes one"
        )
    return study


def planned(study: Study, options: argparse.Namespace, vocabulary: int) -> Plan:
    """The plan that the options ask for, for a size of vocabulary; the study decides what they leave open."""
    if options.shard is not None and not study.papers:
        raise UsageError(
            "this study decides what to train next from what it has found, so it cannot be cut into shards; give"
            " machines different --seed and --replaced, and bring their --cells together"
        )
    if study.papers and (name := next((name for name in _NOT_OF_THE_PAPERS if getattr(options, name)), None)):
        raise UsageError(f"--{name.replace('_', '-')} is not for the paper's experiments: leave it out")
    if options.replaced is not None:
        one_of("layers", options.replaced, dict.fromkeys(REPLACED))
    P = options.preconditioner and one_of("preconditioner", options.preconditioner, _PRECONDITIONERS)
    dims = tiny_dims(*shape(options)) if any(shape(options)) else None
    if dims is not None and options.size in SIZES[1:]:
        raise UsageError(f"size {options.size} has its own dimensions: leave out --dim, --layers and --heads")
    same = ("size", "depth", "per_parameter", "seed", "tuning", "tuning_seeds")
    return study.plan(
        options.replaced,
        vocabulary,
        dims=dims,
        changes=recipe_changes(options),
        names=tuple(options.rows),
        with_beyond=options.beyond,
        seeds=options.seeds or (1 if study.papers and options.size != TINY else None),
        P=P,
        compiled=bool(options.compile),
        **{name: getattr(options, name) for name in same},
    )


def _costs(study: Study, plan: Plan, options: argparse.Namespace) -> Table:
    return tables.costs(study.name, plan, *tables.speed_at(options.size in paper.SIZES, options.tflops))


def _source_bits(choice: CorpusChoice, corpus: Corpus, plan: Plan) -> float | None:
    """The least possible bits per unit on the windows for judging; None for text."""
    chain = chain_of(choice)
    if chain is None:
        return None
    windows = part_windows(corpus.validation.tokens, "judging", JUDGING_WINDOWS, plan.recipe.context)
    return float(chain.surprisals(windows).mean()) * corpus.validation.tokens_per_byte


_PRECONDITIONERS = {name.replace(" ", "-"): name for name in PRECONDITIONERS}
