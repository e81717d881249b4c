"""What a study is: rows, and what is said of them once they are compared. The engine does everything between.

A study of language models is one file of rows and one of sentences:

    rows.py         def rows(setting: Setting) -> Sequence[Row]
    sentences.py    def read(found: Found) -> Findings

and a `Study` that names both. `python -m synthetic language` makes a command of it: the engine finds each row's
learning rate, judges the rows with fresh seeds, goes on where it was stopped, and writes result, readings and page.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from synthetic.studies.engine import readings
from synthetic.studies.engine.comparisons import MARGIN, Compared
from synthetic.studies.engine.designs import LAYERS, Replaced, Row, parameters
from synthetic.studies.engine.pages import Page
from synthetic.studies.engine.plan import Plan, Setting, plan
from synthetic.studies.engine.rates import rate
from synthetic.studies.engine.tuning import State, paths_of


@dataclass(frozen=True)
class Found:
    """A study as far as it is: all that its sentences may rest on.

    Attributes:
        plan: what it runs. state: what came of it. corpus: in a sentence, unit: of its text, "byte" or "token".
        floor: bits per unit that no predictor can do without on the windows that judge; None of text.
    """

    plan: Plan
    state: State
    corpus: str
    unit: str
    floor: float | None = None


@dataclass(frozen=True)
class Findings:
    """What a study says.

    Attributes:
        page: sentences, pictures and tables. conclusion: the sentences that a terminal shows below the tables.
        compared: the comparisons that the readings hold. title: of their table.
        figures: what the readings hold beside the common figures, or in their place. more: what only the result file
            holds.
    """

    page: Page
    conclusion: str
    compared: Sequence[Compared]
    title: str = "Ratios at equal tokens"
    figures: Mapping[str, Any] = field(default_factory=dict)
    more: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Study:
    """A study of language models whose rows find their own learning rates.

    Attributes:
        name: of its command. summary: of one line. description, example: for its help.
        rows: makes the models. read: says what came of them.
        replaced, depth, per_parameter, seeds: the usual ones. depths, stops: with which judged models are scored.
    """

    name: str
    summary: str
    description: str
    rows: Callable[[Setting], Sequence[Row]]
    read: Callable[[Found], Findings]
    example: str = ""
    replaced: Replaced = "attention"
    depth: int = 2
    per_parameter: float = 20.0
    seeds: int = 8
    depths: tuple[int, ...] = ()
    stops: tuple[float, ...] = ()

    def plan(
        self,
        replaced: Replaced | None,
        vocabulary: int,
        *,
        depth: int | None = None,
        per_parameter: float | None = None,
        seeds: int | None = None,
        **others: Any,
    ) -> Plan:
        """What the study runs (`engine.plan.plan`); what is None is as usual in this study.

        Args:
            others: as `engine.plan.plan` takes them.

        Raises:
            UsageError: there is no such size or row, or a number is out of its range.
        """
        return plan(
            self.rows,
            replaced or self.replaced,
            vocabulary,
            depth=depth or self.depth,
            per_parameter=per_parameter or self.per_parameter,
            seeds=seeds or self.seeds,
            depths=self.depths,
            stops=self.stops,
            **others,
        )


def figures(study: str, found: Found, findings: Findings) -> dict[str, Any]:
    """The readings of a study: what it measured, and at what scale."""
    plan, recipe = found.plan, found.plan.recipe
    # a control may be wider
    of_cem = [r.design for r in plan.rows if r.design.replaced == plan.replaced and r.design.size == plan.frame.size]
    common = readings.payload(
        f"{study}-{plan.replaced}",
        [
            readings.measured_ratio(c.model, c.base, c.values, c.references) | {"verdict": c.verdict}
            for c in findings.compared
            if c.seeds and not c.diverged
        ],
        layers=LAYERS[plan.replaced],
        size=plan.size,
        parameters=max((parameters(design) for design in of_cem), default=0),
        seen=f"{recipe.tokens / 1e6:.3g}M tokens",
        replicates=readings.counted(found.state.seeds, "seed"),
        recipe=(
            f"{recipe.steps:,} steps on {found.corpus}, embeddings N(0, 1), each row at its own learning rate, tuned"
            " on other seeds and another half of the validation part"
            f"{', through torch.compile' if plan.compiled else ''}"
        ),
        figure=f"bits per {found.unit} at equal tokens",
        margin=MARGIN,
        best_rates=[
            {"model": tuned.row.name, "rate": tuned.rate, "at_edge": False}
            for tuned in found.state.rows
            if tuned.rate is not None
        ],
    )
    return {**common, **findings.figures}


def everything(study: str, found: Found, findings: Findings) -> dict[str, Any]:
    """What the result file holds: the readings, every training, every comparison in full, and the page."""
    return {
        **figures(study, found, findings),
        "missing": len(found.state.todo),
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
            for tuned in found.state.rows
        ],
        "pairs": [asdict(pair) for pair in findings.compared],
        **findings.more,
        "paths": paths_of(found.plan),
        "page": findings.page.kept,
    }
