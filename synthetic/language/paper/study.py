"""A study from its plan to its findings: the cells that the store lacks are computed, and all are read together."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cemverify.results.envelope import Table
from cemverify.runs import Cell, RunOptions, payloads, run_cells
from synthetic.corpora.batches import Batches, spread_windows
from synthetic.corpora.choice import PinnedCorpus
from synthetic.corpora.corpus import Corpus
from synthetic.language.paper import tables
from synthetic.language.paper.cells import TrainingRecord, compute_training, read_record, training_cell
from synthetic.language.paper.estimates import Forecast, forecasts, speed_of
from synthetic.language.paper.statements import read
from synthetic.language.paper.studies import StudyPlan, Variant
from synthetic.language.paper.summary import Row, summarise
from synthetic.language.training.looped import looped_on_meta
from synthetic.language.training.paths import Paths, paths
from synthetic.statements import Statement

# Of one CPU core, about what a cell reaches; it only orders the cells and guesses the time that is left.
USUAL_FLOPS_PER_SECOND = 2e10


@dataclass(frozen=True)
class StudyFindings:
    """What a study found.

    Attributes:
        rows: one for each model. statements: of the paper, read. tables: for people.
    """

    rows: Sequence[Row]
    statements: Sequence[Statement]
    tables: Sequence[Table]


def conduct(asked: StudyPlan, corpus: PinnedCorpus, unit: str, device: str, where: RunOptions) -> StudyFindings:
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
    shown = [tables.comparisons(asked, unit, rows)]
    if asked.study == "learning-rate":
        shown.append(tables.rates(rows, unit))
    return StudyFindings(rows, read(asked.study, rows), shown)


def paths_of(asked: StudyPlan) -> dict[str, Paths]:
    """The paths that the layers of each model take, by its name."""
    return {v.name: paths(looped_on_meta(v.looped), asked.recipe_of(v)) for v in asked.variants}


def payload(asked: StudyPlan, corpus: Corpus, found: StudyFindings) -> dict[str, Any]:
    """Everything as plain values, for the result file."""
    return {
        "study": {"name": asked.study, "figure": asked.figure, "size": asked.size, "seeds": asked.seeds},
        "corpus": corpus.describe(),
        "rows": [asdict(row) for row in found.rows],
        "paths": paths_of(asked),
        "statements": [asdict(statement) for statement in found.statements],
    }


def check_fits(asked: StudyPlan, corpus: Corpus) -> None:
    """Refuses a context that is longer than the data, before any work."""
    Batches(corpus.train.tokens, asked.seed, asked.recipe.batch, asked.recipe.context)
    spread_windows(corpus.validation.tokens, asked.windows, asked.recipe.context)


def _cell(asked: StudyPlan, variant: Variant, seed: int, corpus: PinnedCorpus, device: str, guess: Forecast) -> Cell:
    spec = training_cell(asked, variant, seed, corpus, device)
    return compute_training.cell(spec, cost=3600 * guess.hours, label=f"{variant.name}, seed {seed}")
