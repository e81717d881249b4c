"""A study from its plan to its findings: all cells are known from the start, and are read together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from cemverify.runs import Cell
from synthetic.corpora.batches import Batches, spread_windows
from synthetic.corpora.choice import PinnedCorpus
from synthetic.corpora.corpus import Corpus
from synthetic.studies.engine.conduct import Look
from synthetic.studies.engine.estimates import Speed
from synthetic.studies.engine.pages import Page
from synthetic.studies.engine.statements import Statement
from synthetic.studies.paper.cells import TrainingRecord, compute_training, read_record, training_cell
from synthetic.studies.paper.estimates import forecasts
from synthetic.studies.paper.rows import StudyPlan
from synthetic.studies.paper.sentences import page_of
from synthetic.studies.paper.statements import read
from synthetic.studies.paper.summary import Row, summarise
from synthetic.training.looped import looped_on_meta
from synthetic.training.paths import Paths, paths

# Of one CPU core, about what a cell reaches; it only orders the cells and guesses the time that is left.
USUAL = Speed(2e10, "")


@dataclass(frozen=True)
class State:
    """How far a study is.

    Attributes:
        records: those that are there, of each variant by its name.
        todo: the cells that are missing. known: the others.
    """

    records: Mapping[str, Sequence[TrainingRecord]]
    todo: tuple[Cell, ...]
    known: tuple[Cell, ...]


@dataclass(frozen=True)
class Findings:
    """What a study found.

    Attributes:
        rows: one for each model. statements: of the paper, read. page: with both.
    """

    rows: Sequence[Row]
    statements: Sequence[Statement]
    page: Page


def state(plan: StudyPlan, corpus: PinnedCorpus, device: str, look: Look) -> State:
    """How far the study is; all its cells are known from the start."""
    guesses = forecasts(plan, USUAL)
    records: dict[str, list[TrainingRecord]] = {variant.name: [] for variant in plan.variants}
    todo: list[Cell] = []
    known: list[Cell] = []
    for variant in plan.variants:
        for seed in range(plan.seed, plan.seed + plan.seeds):
            spec = training_cell(plan, variant, seed, corpus, device)
            hours, label = guesses[variant.name].hours, f"{variant.name}, seed {seed}"
            cell = compute_training.cell(spec, cost=3600 * hours, label=label)
            payload = look(cell)
            (todo if payload is None else known).append(cell)
            if payload is not None:
                records[variant.name].append(read_record(payload))
    return State(records, tuple(todo), tuple(known))


def findings(plan: StudyPlan, corpus: str, unit: str, found: State) -> Findings:
    """What all cells say together; none may be missing.

    Args:
        corpus: in words. unit: of its text.
    """
    rows = summarise(plan, found.records)
    statements = read(plan.study, rows)
    return Findings(rows, statements, page_of(plan, corpus, unit, rows, statements))


def payload(plan: StudyPlan, corpus: Corpus, found: Findings) -> dict[str, Any]:
    """Everything as plain values, for the result file."""
    return {
        "study": {"name": plan.study, "figure": plan.figure, "size": plan.size, "seeds": plan.seeds},
        "corpus": corpus.describe(),
        "rows": [asdict(row) for row in found.rows],
        "paths": paths_of(plan),
        "statements": [asdict(statement) for statement in found.statements],
        "page": found.page.kept,
    }


def paths_of(plan: StudyPlan) -> dict[str, Paths]:
    """The paths that the layers of each model take, by its name."""
    return {v.name: paths(looped_on_meta(v.looped), plan.recipe_of(v)) for v in plan.variants}


def check_fits(plan: StudyPlan, corpus: Corpus) -> None:
    """Refuses a context that is longer than the data, before any work.

    Raises:
        UsageError: it is longer than the training or the validation part.
    """
    Batches(corpus.train.tokens, plan.seed, plan.recipe.batch, plan.recipe.context)
    spread_windows(corpus.validation.tokens, plan.windows, plan.recipe.context)
