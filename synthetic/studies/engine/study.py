"""What a study consists of: rows, and the conclusion from their comparison. The engine does everything between.

A study of language models is one file of rows and one of conclusions:

    rows.py         def rows(setting: Setting) -> Sequence[Row]
    conclusion.py   def read(outcome: StudyOutcome) -> Findings

and a `Study` that names both. `python -m synthetic language` makes a command of it: the engine finds each row's
learning rate, judges the rows with fresh seeds, resumes where it was stopped, and writes result, readings and page.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from cemverify.cem import presets as paper
from cemverify.console.errors import UsageError
from synthetic.studies.engine import readings
from synthetic.studies.engine.comparisons import MARGIN, Compared
from synthetic.studies.engine.designs import EMBEDDING_STD, LAYERS, Positions, Replaced, Row, chosen, parameters
from synthetic.studies.engine.pages import Page
from synthetic.studies.engine.plan import Plan, Setting, sized
from synthetic.studies.engine.rates import rate
from synthetic.studies.engine.tuning import StudyState, paths_of
from synthetic.training.frames import TINY, PreconditionerName
from synthetic.training.training import check_shares


@dataclass(frozen=True)
class StudyOutcome:
    """A study as far as it has come: everything that its conclusion may use."""

    plan: Plan  # what it runs
    state: StudyState  # its results
    corpus: str  # in a sentence
    unit: str  # of its text, "byte" or "token"
    # the least possible bits per unit on the windows for judging; None for text
    floor: float | None = None
    missing: int = 0  # trainings to do next; 0 if all are done
    device: str = "cpu"  # where models are trained


@dataclass(frozen=True)
class Findings:
    """What a study found."""

    page: Page  # conclusion, pictures and tables
    conclusion: str  # for a terminal, below the tables
    compared: Sequence[Compared]  # the comparisons in the readings
    title: str = "Ratios at equal tokens"  # of their table
    # further figures for the readings; they replace common ones of the same name
    figures: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)  # what only the result file holds


@dataclass(frozen=True)
class Study:
    """A study of language models whose rows find their own learning rates."""

    name: str  # of its command
    summary: str  # one line
    rows: Callable[[Setting], Sequence[Row]]  # makes the models
    read: Callable[[StudyOutcome], Findings]  # draws the conclusions
    # replaced, depth, per_parameter, seeds: the defaults
    replaced: Replaced = "attention"
    depth: int = 2
    per_parameter: float = 20.0
    seeds: int = 8
    # depths, stops: with which judged models are scored
    depths: tuple[int, ...] = ()
    stops: tuple[float, ...] = ()
    # whether it is one of the paper's experiments: models may differ in which layers are CEM's, have the paper's
    # recipe at one learning rate or at their row's own, and are scored during training
    papers: bool = False
    # P, positions: of the `Setting`
    P: PreconditionerName | None = None
    positions: Positions | None = None
    # tuning, tuning_seeds, rounded, registered: of the `Plan`
    tuning: int = 2
    tuning_seeds: int = 1
    rounded: bool = True
    registered: bool = False

    def plan(
        self,
        replaced: Replaced | None,
        vocabulary: int,
        *,
        size: str = TINY,
        dims: paper.Size | None = None,
        depth: int | None = None,
        per_parameter: float | None = None,
        changes: Mapping[str, Any] | None = None,
        names: Sequence[str] = (),
        with_beyond: bool = False,
        seeds: int | None = None,
        P: PreconditionerName | None = None,
        tuning: int | None = None,
        tuning_seeds: int | None = None,
        **more: Any,
    ) -> Plan:
        """What the study runs; None stands for the study's default.

        Args:
            vocabulary: V; the paper's sizes need its 32,000. dims: replace those of the size "tiny".
            changes: changed numbers of the recipe.
            names: of the rows to run; () means all usual ones. with_beyond: also all rows beyond the paper.
            P: of CEM's layers. more: `seed` and `compiled` of the `Plan`.
        """
        replaced, depth = replaced or self.replaced, depth or self.depth
        frame, recipe = sized(size, vocabulary, dims, papers=self.papers)
        changes = changes or {}
        recipe = replace(recipe, **changes)
        check_shares(recipe)
        embedding_std = frame.init_std if self.papers else EMBEDDING_STD
        setting = Setting(replaced, frame, recipe.context, depth, embedding_std, P or self.P, self.positions)
        every, llama = self.rows(setting), parameters(setting.llama)
        if "learning_rate" in changes and (not self.papers or any(row.rate for row in every)):
            raise UsageError("the study has learning rates of its own: leave out --learning-rate")
        per_parameter = per_parameter or self.per_parameter
        if "steps" not in changes and not self.papers:
            recipe = replace(recipe, steps=math.ceil(per_parameter * llama / (recipe.batch * recipe.context)))
        else:
            per_parameter = recipe.tokens / llama
        usual = names or [row.name for row in every if not row.beyond]
        also = [row.name for row in every if row.beyond and with_beyond]
        rows = chosen(every, [*usual, *also])
        rules = ("depths", "stops", "papers", "rounded", "registered")
        options: dict[str, Any] = {**{name: getattr(self, name) for name in rules}, **more}
        options |= {"tuning": tuning or self.tuning, "tuning_seeds": tuning_seeds or self.tuning_seeds}
        return Plan(replaced, size, frame, depth, per_parameter, recipe, rows, seeds or self.seeds, **options)


def figures(study: str, outcome: StudyOutcome, findings: Findings) -> dict[str, Any]:
    """The readings of a study: what it measured, and at what scale; see docs/result-files.md."""
    plan, recipe = outcome.plan, outcome.plan.recipe
    # the largest: a control may be wider
    of_cem = [r.design for r in plan.rows if r.design.replaced == plan.replaced and r.design.size == plan.frame.size]
    common = {
        "study": study if plan.papers else f"{study}-{plan.replaced}",
        **({} if plan.papers else {"layers": LAYERS[plan.replaced]}),
        "size": plan.size,
        "parameters": max((parameters(design) for design in of_cem), default=0),
        "seen": f"{recipe.tokens / 1e6:.3g}M tokens",
        "replicates": readings.counted(outcome.state.seeds, "seed"),
        "recipe": (
            f"{recipe.steps:,} steps on {outcome.corpus}, embeddings N(0, 1), each row at its own learning rate,"
            " tuned on other seeds and another half of the validation part"
            f"{', through torch.compile' if plan.compiled else ''}"
        ),
        "figure": f"bits per {outcome.unit} at equal tokens",
        "margin": MARGIN,
        "ratios": [
            readings.measured_ratio(c.model, c.base, c.values, c.references) | {"verdict": c.verdict}
            for c in findings.compared
            if c.seeds and not c.diverged
        ],
        "best_rates": [
            {"model": tuned.row.name, "rate": tuned.rate, "at_edge": False}
            for tuned in outcome.state.rows
            if tuned.rate is not None
        ],
    }
    return {**common, **findings.figures}


def everything(study: str, outcome: StudyOutcome, findings: Findings) -> dict[str, Any]:
    """What the result file holds: the readings, every training, every comparison in full, and the page."""
    return {
        **figures(study, outcome, findings),
        "missing": outcome.missing,
        "rows": [
            {
                "name": tuned.row.name,
                "design": asdict(tuned.row.design),
                "rate": tuned.rate,
                "tuning": [
                    {"share": c.share, "rates": [rate(k) for k in c.bits], "bits": list(c.bits.values())}
                    for c in tuned.curves
                ],
                "judged": {str(seed): None if r is None else asdict(r) for seed, r in tuned.judged.items()},
            }
            for tuned in outcome.state.rows
        ],
        "pairs": [asdict(pair) for pair in findings.compared],
        **findings.more,
        "paths": paths_of(outcome.plan, outcome.device),
        "page": findings.page.content,
    }
