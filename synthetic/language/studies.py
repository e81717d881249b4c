"""The commands of studies: `second-step`, `fixed-memory`, `dial`, `own`, and `study` for the paper's experiments."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict

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
from synthetic.studies.engine.estimates import speed_at
from synthetic.studies.engine.plan import JUDGING_WINDOWS, SIZES, Plan
from synthetic.studies.engine.readings import readings
from synthetic.studies.engine.study import Found, Study, everything, figures
from synthetic.studies.engine.trials import part_windows
from synthetic.studies.paper import study as study_of_paper
from synthetic.studies.paper.rows import EXPERIMENTS
from synthetic.training.cost import words
from synthetic.training.frames import PRECONDITIONERS, TINY, tiny_dims

STUDIES: Sequence[Study] = (second_step.STUDY, fixed_memory.STUDY, depth_dial.STUDY)

USAGE = "[--replaced LAYER] [--until MINUTES] [option ...]"
OWN_USAGE = f"MODULE:STUDY {USAGE}"
OWN_SUMMARY = "a study of your own: one file of rows and one of sentences"
OWN_DESCRIPTION = """\
Conducts the `Study` that a module of yours holds, as `second-step` and `dial` are conducted: each row
finds its own learning rate and is judged with fresh seeds on other text. All trainings are kept: the
same command goes on where it stopped. docs/how-to/new-study.md writes one.
"""

HOW = """\
--replaced LAYER      attention, mlp or full are CEM's{replaced}; --depth T{depth}
--size SIZE           tiny (default), small (a million parameters, context 256), 86M, 108M, 134M, 162M
--per-parameter N     tokens for each parameter of Llama, the same for all rows{per_parameter}
--rows NAME ...       only these rows, as in the tables: 'T = 1' 'T = 2, eta 1/2'
--beyond              also rows that the paper does not have
--seeds N --seed S    judge with N seeds, from S on{seeds}
--tuning N            find rates in trainings of 1/N of the length{tuning}; --tuning-seeds N
--preconditioner P    of CEM's layers: identity, diagonal or low-rank (default: as in the paper)
other numbers:        --steps N --batch B --context J --accumulate N --dim D --layers L --heads K
"""

PAPERS_SUMMARY = "repeat one of the paper's experiments, with several seeds, and read its statements"
PAPERS_USAGE = "NAME [--size SIZE] [--seeds N] [option ...]"
PAPERS_DESCRIPTION = """\
Trains every model of an experiment, compares them at equal tokens, FLOPs and parameters, and reads the
paper's statements against that. Every training is kept, and the same command goes on from there.
"""

_LISTED = "\n".join(f"{name:<22}{found.title} ({found.figure})" for name, found in EXPERIMENTS.items())
PAPERS_HOW = f"""\
{_LISTED}
--size SIZE           {", ".join((TINY, *paper.SIZES))}; tiny (the default) trains on a laptop
--seeds N --seed S    N trainings of each model, from seed S on (default: 6 from 0; 1 beyond tiny)
{NUMBERS_HELP} (tiny)"""

ABOUT_COSTS = """\
One training reads {tokens:,} tokens, drawn with replacement; that many take {disk:,.2f} GB on disk. What a window
keeps is beside the memory, for each window of a pass. Causal attention counts as if it were dense. CEM layers that
are not compiled reach a smaller share of a GPU's speed than Llama's; give the speed of yours with --tflops."""


def add_arguments(parser: Command, study: Study | None) -> None:
    """The options of the command of a study; of a study that the command line names, if it is None."""

    names = ("replaced", "depth", "per_parameter", "seeds", "tuning")
    usual = dict.fromkeys(names, "")
    if study is not None:
        usual = {name: f" (default: {getattr(study, name)})" for name in names}
        usual |= {
            "per_parameter": f" (default: {study.per_parameter:g})",
            "seeds": f" (default: {study.seeds} from 0)",
        }
    parser.description = OWN_DESCRIPTION if study is None else study.description
    name = "own mystudy.sentences:STUDY --until 60" if study is None else f"{study.name} {study.example}"
    parser.epilog = f"example: python -m synthetic language {name}\n"
    add = add_recipe_arguments(parser, "the study", HOW.format(**usual), finds_rates=True)
    if study is None:
        add("study_of", metavar="MODULE:STUDY")
    add("--replaced")
    add("--size", default=TINY)
    add("--per-parameter", type=positive)
    add("--depth", type=whole(2))
    add("--rows", nargs="+", default=())
    add("--beyond", action="store_true")
    add("--seeds", type=whole(1))
    add("--seed", type=seed, default=0)
    add("--tuning-seeds", type=whole(1))
    add("--tuning", type=whole(1))
    add("--preconditioner")
    add_when(parser)("--compile", action="store_true")
    parser.checks.append(_check)


def add_papers_arguments(parser: Command) -> None:
    """The options of `study`, one of the paper's experiments, which the command line names."""
    parser.description = PAPERS_DESCRIPTION
    parser.epilog = "example: python -m synthetic language study recursion --size 86M --estimate\n"
    add = add_recipe_arguments(parser, "the study", PAPERS_HOW)
    add("experiment", metavar="NAME")
    add("--size", default=TINY)
    add("--seeds", type=whole(1))
    add("--seed", type=seed, default=0)
    add_when(parser, "")
    # what the other studies have options for
    parser.set_defaults(replaced=None, depth=None, per_parameter=None, rows=(), beyond=False, compile=False)
    parser.set_defaults(tuning=2, tuning_seeds=1, preconditioner=None)


def run_papers(options: argparse.Namespace) -> int:
    """Conducts the experiment of that name, as `run` says; returns the exit code.

    Raises:
        UsageError: there is no such experiment; and as `run`.
    """
    return run(options, study_of_paper(options.experiment))


def run(options: argparse.Namespace, study: Study | None) -> int:
    """Goes on with the study, prints its tables, writes its result file and its page; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.envelope.ResultError: something cannot be written.
    """
    study = _own(options.study_of) if study is None else study
    choice = corpus_choice(options)
    # a wrong name or number needs no corpus to be told
    asked = planned(study, options, paper.VOCABULARY if options.size in paper.SIZES else choice.vocabulary)
    if options.estimate:
        shown = [] if asked.papers else [tables.need()]
        envelope.show(terminal([*shown, _costs(study, asked, options)]))
        envelope.show(f"\n{ABOUT_COSTS.format(tokens=asked.recipe.tokens, disk=2 * asked.recipe.tokens / 1e9)}")
        return 0
    usual = study.name if asked.papers else f"{study.name}-{asked.replaced}-{asked.size}"
    place = workplace(options, f"out/{usual}.json")
    corpus = place.corpus
    asked = planned(study, options, corpus.vocabulary)
    tuning.check_fits(asked, corpus)
    if not asked.papers:
        note(terminal([tables.need()]))
    elif asked.size != TINY:
        note(terminal([_costs(study, asked, options)]))
    maker = Maker.now(place.again, asdict(asked), asked.seed, place.device)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    progress = conduct(lambda: tuning.study(asked, place.pinned, place.device), place.where, options.until)
    if progress.todo and asked.papers:  # which are read together
        write_results(place, progress, None, None)
        return 0
    source = _source_bits(choice, corpus, asked)
    found = Found(
        *(asked, progress.result, f"the {corpus.name}", corpus.unit, source, corpus.train.bytes), len(progress.todo)
    )
    findings = study.read(found)
    shown = findings.page.tables
    envelope.show(terminal(shown))
    envelope.show(f"\n{words(tuning.paths_of(asked), compiled=asked.compiled)}")
    envelope.show(f"\n{findings.conclusion}")
    content = {**everything(study.name, found, findings), "corpus": corpus.describe()}
    result = envelope.result("readings", maker, shown, content)
    measured = readings(maker, findings.title, figures(study.name, found, findings))
    write_results(place, progress, result, measured)
    return 0


def planned(study: Study, options: argparse.Namespace, vocabulary: int) -> Plan:
    """What the options ask of a study, for tokens of a vocabulary; what they leave open is the study's.

    Raises:
        UsageError: there is no such size or row, or a number is out of its range.
    """
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
        P=_PRECONDITIONERS.get(options.preconditioner),
        compiled=options.compile,
        **{name: getattr(options, name) for name in same},
    )


def _costs(study: Study, asked: Plan, options: argparse.Namespace) -> Table:
    return tables.costs(study.name, asked, *speed_at(options.size in paper.SIZES, options.tflops))


def _source_bits(choice: CorpusChoice, corpus: Corpus, asked: Plan) -> float | None:
    """Bits that no predictor can do without on the windows that judge; None of text."""
    chain = chain_of(choice)
    if chain is None:
        return None
    windows = part_windows(corpus.validation.tokens, "judging", JUDGING_WINDOWS, asked.recipe.context)
    return float(chain.surprisals(windows).mean()) * corpus.validation.tokens_per_byte


def _own(name: str) -> Study:
    found = attribute(name)
    if not isinstance(found, Study):
        raise UsageError(
            f"{name} is of type {type(found).__name__}; name a `synthetic.studies.engine.study.Study`, as"
            " docs/how-to/new-study.md writes one"
        )
    return found


_PRECONDITIONERS = {name.replace(" ", "-"): name for name in PRECONDITIONERS}


def _check(options: argparse.Namespace) -> None:
    if options.preconditioner is not None:
        one_of("preconditioner", options.preconditioner, _PRECONDITIONERS)
    if options.replaced is not None:
        one_of("layers", options.replaced, dict.fromkeys(REPLACED))
    if options.shard is not None:
        raise UsageError(
            "this study decides what to train next from what it has found, so it cannot be cut into shards; give"
            " machines different --seed and --replaced, and bring their --cells together"
        )
