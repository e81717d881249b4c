"""`python -m synthetic language --study NAME --size SIZE`: estimate, cells, tables, statements, page."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from cemverify import results
from cemverify.cem import presets as paper
from cemverify.devices import find_device
from cemverify.errors import UsageError
from cemverify.runs import Cell, RunOptions, payloads, run_cells, run_options
from cemverify.tables import terminal
from synthetic.corpora.batches import Batches, spread_windows
from synthetic.corpora.chains import ChainSpec
from synthetic.corpora.corpus import Corpus
from synthetic.corpora.tokenisers import Symbols, subwords
from synthetic.language.options import TRAINING, as_typed, open_corpus
from synthetic.language.paper import study_tables
from synthetic.language.paper.cells import (
    CorpusSpec,
    TrainingRecord,
    inherit_corpora,
    perform_training,
    read_record,
    training_cell,
)
from synthetic.language.paper.estimates import Forecast, forecasts, speed_of
from synthetic.language.paper.statements import read
from synthetic.language.paper.studies import TINY, Plan, Variant, plan, tiny_dims
from synthetic.language.paper.study_page import write_page
from synthetic.language.paper.summary import Row, summarise
from synthetic.statements import Statement

# Of one CPU core, about what a cell reaches; it only orders the cells and guesses the time that is left.
USUAL_FLOPS_PER_SECOND = 2e10


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        rows: one for each model. statements: of the paper, read. tables: for people.
    """

    rows: Sequence[Row]
    statements: Sequence[Statement]
    tables: Sequence[results.Table]


def run_study(options: argparse.Namespace) -> int:
    """Runs the study that the options of the command line ask for; returns the exit code.

    Raises:
        UsageError: the options make no sense, or the corpus cannot be had.
        cemverify.results.ResultError: something cannot be written.
    """
    options = argparse.Namespace(
        **{
            **vars(options),
            "resume": options.resume is not False,
            "size": options.size or TINY,
            "output": options.output or Path(f"out/language-{options.experiment}.json"),
        }
    )
    if options.estimate:
        return _estimate(options)
    where = run_options(_one_process_a_gpu(options))
    for path in (options.output, options.page):
        if path is not None:
            results.check_writable(path)
    inherit_corpora(options.corpora)
    asked_for(options, _expected_vocabulary(options))  # a wrong name or number needs no corpus to be told
    device = _device(options.device)
    corpus, _chain = open_corpus(options)
    asked = asked_for(options, corpus.vocabulary)
    _check_fits(asked, corpus)
    if asked.size != TINY:
        speed = speed_of(asked, options.tflops)
        print(terminal([study_tables.costs(asked, forecasts(asked, speed), speed.words)]), file=sys.stderr)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    command = again(options)
    maker = results.Maker.now(command, asdict(asked), asked.seed, device)
    found = perform(asked, CorpusSpec.of(options, corpus), corpus.unit, device, where)
    results.show(terminal(found.tables))
    for statement in found.statements:
        results.show(f"\nthe paper: {statement.text}\n     here: {statement.found}\n  reading: {statement.reading}")
    results.write(options.output, results.result("language", maker, found.tables, payload(asked, corpus, found)))
    print(f"wrote {options.output}", file=sys.stderr)
    if options.page is not None:
        name = f"the {corpus.name}, {corpus.train.bytes:,} {corpus.unit}s to learn from"
        written = write_page(
            options.page, command, asked, name, corpus.unit, found.rows, found.statements, found.tables
        )
        print(f"wrote {', '.join(map(str, written))}", file=sys.stderr)
    return 0


def asked_for(options: argparse.Namespace, vocabulary: int) -> Plan:
    """The study with what the options change of it.

    Raises:
        UsageError: there is no such study or size, or the numbers do not fit together.
    """
    dims = tiny_dims(options.dim, options.layers, options.heads)
    if options.size in paper.SIZES and (options.dim or options.layers or options.heads):
        raise UsageError(f"size {options.size} has its own dimensions: leave out --dim, --layers and --heads")
    found = plan(options.experiment, options.size, vocabulary, seeds=options.seeds, seed=options.seed, dims=dims)
    if found.variants[0].learning_rate is not None and options.learning_rate is not None:
        raise UsageError(f"the study {found.study} has learning rates of its own: leave out --learning-rate")
    names = ("steps", "batch", "context", "accumulate", "learning_rate")
    given = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    recipe = replace(found.recipe, **given)
    if recipe.batch % recipe.accumulate:
        raise UsageError(
            f"a batch of {recipe.batch} windows cannot be shared equally by {recipe.accumulate} passes; choose a"
            " --batch that is a multiple of --accumulate"
        )
    return replace(found, recipe=recipe)


def perform(asked: Plan, corpus: CorpusSpec, unit: str, device: str, where: RunOptions) -> Findings:
    """Computes what the store lacks, and reads what all cells say together.

    Raises:
        UsageError: a cell failed.
    """
    pairs = [(variant, asked.seed + i) for variant in asked.variants for i in range(asked.seeds)]
    guesses = forecasts(asked, speed_of(asked, USUAL_FLOPS_PER_SECOND / 1e12))
    cells = [_cell(asked, variant, seed, corpus, device, guesses[variant.name]) for variant, seed in pairs]
    records: dict[str, list[TrainingRecord]] = {}
    for (variant, _seed), found in zip(pairs, payloads(run_cells(cells, where), where.store), strict=True):
        records.setdefault(variant.name, []).append(read_record(found))
    rows = summarise(asked, records)
    tables = [study_tables.comparisons(asked, unit, rows)]
    if asked.study == "learning-rate":
        tables.append(study_tables.rates(rows, unit))
    return Findings(rows, read(asked.study, rows), tables)


def payload(asked: Plan, corpus: Corpus, found: Findings) -> dict[str, Any]:
    """Everything as plain values, for the result file."""
    return {
        "study": {"name": asked.study, "figure": asked.figure, "size": asked.size, "seeds": asked.seeds},
        "corpus": corpus.describe(),
        "rows": [asdict(row) for row in found.rows],
        "statements": [asdict(statement) for statement in found.statements],
    }


def again(options: argparse.Namespace) -> str:
    """The command that makes the same tables again."""
    words = ["python", "-m", "synthetic", "language", "--study", options.experiment, "--size", options.size]
    words += as_typed(options, "seeds", *TRAINING, "page")
    if options.seed:
        words += ["--seed", str(options.seed)]
    if options.device not in ("auto", "cpu"):
        words += ["--device", options.device]
    return shlex.join(words)


def _estimate(options: argparse.Namespace) -> int:
    asked = asked_for(options, _expected_vocabulary(options))
    speed = speed_of(asked, options.tflops)
    results.show(terminal([study_tables.costs(asked, forecasts(asked, speed), speed.words)]))
    tokens = asked.recipe.tokens
    results.show(
        f"\nA training reads {tokens:,} tokens, drawn with replacement; as many are {2 * tokens / 1e9:,.2f} GB on the"
        " disk. Memory is of weights, gradients and optimiser state, without activations; causal attention counts as"
        " if dense. Eager CEM layers reach less of a GPU than Llama's: --tflops takes what yours reach."
    )
    return 0


def _expected_vocabulary(options: argparse.Namespace) -> int:
    """Of the corpus that is not opened for an estimate: symbols, subwords or bytes, or the paper's tokens."""
    if options.size != TINY:
        return paper.VOCABULARY
    if not (options.text or options.dataset) and options.corpus != "library":
        return options.symbols or ChainSpec.vocabulary
    return subwords(options.tokeniser).vocabulary if options.tokeniser else Symbols().vocabulary


def _check_fits(asked: Plan, corpus: Corpus) -> None:
    """Refuses a context that is longer than the data, before any work."""
    Batches(corpus.train.tokens, asked.seed, asked.recipe.batch, asked.recipe.context)
    spread_windows(corpus.validation.tokens, asked.windows, asked.recipe.context)


def _cell(asked: Plan, variant: Variant, seed: int, corpus: CorpusSpec, device: str, guess: Forecast) -> Cell:
    spec = training_cell(asked, variant, seed, corpus, device)
    return perform_training.cell(spec, cost=3600 * guess.hours, label=f"{variant.name}, seed {seed}")


def _device(name: str) -> str:
    try:
        return find_device(name)
    except ValueError as error:
        raise UsageError(str(error)) from None


def _one_process_a_gpu(options: argparse.Namespace) -> argparse.Namespace:
    """The options with one worker where a GPU computes: two on one GPU only wait for each other."""
    on_gpu = _device(options.device).startswith("cuda")
    if on_gpu and options.workers is None and options.cluster is None:
        return argparse.Namespace(**{**vars(options), "workers": 1})
    return options
