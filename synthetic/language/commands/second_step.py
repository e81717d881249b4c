"""`python -m synthetic language second-step`: whether T steps beat one, every row at its own best recipe."""

from __future__ import annotations

import argparse
import shlex
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch

from cemverify import results
from cemverify.cem import presets as paper
from cemverify.errors import UsageError
from cemverify.parsing import positive, seed, whole
from cemverify.runs import CellStore, add_run_arguments, bring, hand_on, run_options
from cemverify.tables import terminal
from synthetic.corpora.choice import PinnedCorpus, open_corpus
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
from synthetic.language.paper.studies import TINY, tiny_dims
from synthetic.language.training.paths import words

SUMMARY = "does a second step pay? every row tuned by itself, judged with fresh seeds on other text"
USAGE = "[--replaced LAYER] [--until MINUTES] [option ...]"

DESCRIPTION = """\
T = 1, T = 2, and what a gain must survive: T = 1 with a longer step, wider, applied twice, and
again with other weights. Each finds its own learning rate with the same budget and is judged with
fresh seeds on other text. Every training is kept: the same command goes on where it stopped.
"""

HOW = """\
--replaced LAYER      attention (default), mlp or full: which layers are CEM's; --depth T (default: 2)
--size SIZE           tiny (default), small (a million parameters, context 256), 86M, 108M, 134M, 162M
--per-parameter N     tokens for each parameter of Llama, the same for all rows (default: 20)
--rows NAME ...       only these rows, as in the tables: 'T = 1' 'T = 1, eta 2' 'T = 2, eta 1/2'
--beyond              also rows that the paper does not have: momentum, a P for each step, turns ...
--seeds N --seed S    judge with N seeds, from S on (default: 8 from 0)
--tuning N            find each --learning-rate at 1/N of the length (default: 2), with --tuning-seeds N
other numbers:        --steps N --batch B --context J --accumulate N --dim D --layers L --heads K
"""

WHEN = """\
--estimate            print power analysis and hours, and train nothing; --tflops N: of your device
--until MINUTES       stop cleanly after that time and show what there is; 0 trains nothing
--cells FILE          read finished trainings from it, and write all of them to it at the end
--page FILE           a page in Markdown; --output FILE; --device cpu or cuda; --compile: faster
"""

EPILOG = """\
example: python -m synthetic language second-step --replaced mlp --until 60 --cells mlp.cells.jsonl
"""


def add_arguments(parser: Command) -> None:
    """The options of the command."""
    parser.description = DESCRIPTION
    parser.epilog = EPILOG
    add = add_recipe_arguments(parser, "the study", HOW)
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
    add_when = add_compact(parser, "when, and where to", WHEN)
    add_when("--estimate", action="store_true")
    add_when("--tflops", type=positive)
    add_when("--compile", action="store_true")
    add_when("--until", type=minutes)
    add_when("--cells", type=Path)
    add_when("--page", type=Path)
    add_when("--output", type=Path)
    add_when("--device", default="auto")
    add_corpus_arguments(parser)
    add_run_arguments(parser, None)
    parser.checks.append(check_tuned)


def run(options: argparse.Namespace) -> int:
    """Goes on with the study, prints its tables, writes its result file and its page; returns the exit code.

    Raises:
        UsageError: an option is invalid, or the corpus is not available.
        cemverify.results.ResultError: something cannot be written.
    """
    from synthetic.language.paper.cells import inherit_corpora  # scipy and matplotlib are heavy to import
    from synthetic.language.paper.estimates import speed_at
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
        results.show(terminal([tables.need(asked, None), tables.costs(asked, speed)]))
        return 0
    where = run_options(options)
    device = tuned_device(options)
    if device.startswith("cuda") and options.workers is None and options.cluster is None:
        where = replace(where, workers=1)  # two processes on one GPU only wait for each other
    output = options.output or Path(f"out/second-step-{asked.replaced}-{asked.size}.json")
    for path in (output, options.page, options.cells):
        if path is not None:
            results.check_writable(path)
    inherit_corpora(options.corpora)
    corpus = open_corpus(choice, options.corpora)
    asked = planned(corpus.vocabulary)
    study.check_fits(asked, corpus)
    if options.cells is not None and options.cells.exists():
        brought = bring(options.cells, CellStore(where.store))
        print(f"{options.cells}: {brought} trainings that the store lacked", file=sys.stderr)
    print(terminal([tables.need(asked, None)]), file=sys.stderr)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    again = _command(options, device)
    maker = results.Maker.now(again, asdict(asked), asked.seed, device)
    pinned = PinnedCorpus(choice.anywhere, corpus.digest)
    found = study.conduct(asked, pinned, device, where, options.until)
    summary = summarise(asked, found)
    shown = [
        *tables.beyond(asked, summary),
        tables.models(asked, found, summary, corpus.unit),
        tables.pairs(summary),
        tables.tuning(found, corpus.unit),
    ]
    results.show(terminal([*shown, tables.steps(found)]))
    results.show(f"\n{words(study.paths_of(asked), compiled=asked.compiled)}")
    results.show(f"\nthe second step: {summary.verdict}; {summary.why}")
    if found.todo:
        results.show(f"not finished: {len(found.todo)} trainings are next; the same command goes on")
    figures = measured.payload(asked, f"the {corpus.name}", corpus.unit, found, summary)
    everything = {**figures, **measured.everything(found, summary), "paths": study.paths_of(asked)}
    results.write(output, results.result("readings", maker, shown, everything))
    written = [output]
    if options.cells is not None:
        hand_on(options.cells, CellStore(where.store), study.keys(found))
        written.append(options.cells)
    if options.page is not None:
        name = f"the {corpus.name}"
        written += write_page(options.page, again, asked, name, corpus.unit, found, summary)
        beside = options.page.with_suffix(".json")
        results.write(beside, readings(maker, "Ratios at equal tokens", figures))
        written.append(beside)
    print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
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
    return shlex.join([*words, *tuned_words(options, device)])
