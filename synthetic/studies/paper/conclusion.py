"""What an experiment says of the paper's statements, and what its page shows of that."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_ratio, shown_spread, shown_verdict
from cemverify.results.statistics import PairedComparison, correct, spread
from synthetic.figures.charts import Curve, Panel
from synthetic.studies.engine import report
from synthetic.studies.engine.comparisons import Compared, compared
from synthetic.studies.engine.designs import parameters
from synthetic.studies.engine.pages import Curves, Picture
from synthetic.studies.engine.statements import shown_statements
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.paper import statements
from synthetic.studies.paper.rows import ALIBI, EXPERIMENTS, FULL, RATES, ROTARY, Key, Variant
from synthetic.studies.paper.statements import EXPECTATIONS
from synthetic.studies.paper.summary import Optimum, Summed, between, summarise, tuned

TUNED = (ROTARY, ALIBI, FULL, replace(FULL, widened=True))  # with several learning rates


def read(study: StudyOutcome, name: str) -> Findings:
    """What the experiment of that name says, once all of its models are trained."""
    plan = study.plan
    rows, figure = summarise(plan.recipe.steps, study.state.rows), EXPERIMENTS[name].figure
    read = statements.read(name, study.state)
    shown = [shown_statements(read), comparisons(study, name, rows)]
    picture = Picture("ratios", "Along the way, and what the models cost", ratios(study, rows))
    if name == "learning-rate":
        shown.append(rates(study))
        picture = Picture("rates", "Bits over the learning rate", learning_rates(study))
    optima = {key: tuned(study.state, key) for key in (FULL, ROTARY, ALIBI)} if name == "learning-rate" else {}
    readings = Counter(statement.reading for statement in read)
    findings = report.findings(
        study,
        f"{name.capitalize()} in a language model, {figure}, size {plan.size}",
        f"The paper's statements, read here: {', '.join(f'{n} {reading}' for reading, n in readings.items())}.",
        "With small first embeddings a second step costs bits by itself: whether one can pay, `second-step` asks.",
        pictures=[picture],
        shown=shown,
        figures={
            "parameters": max(parameters(row.design) for row in plan.rows),
            "recipe": f"{plan.recipe.steps:,} steps on {study.corpus}, AdamW with the settings of Table 2",
            "best_rates": [_best(key, each) for key, each in optima.items() if each],
        },
        more={"statements": [asdict(statement) for statement in read]},
    )
    return replace(findings, compared=[*_pairs(study, name), *_tuned_pairs(optima)])


# --- tables ------------------------------------------------------------------------------------------


def comparisons(study: StudyOutcome, name: str, rows: Sequence[Summed]) -> Table:
    """Every model at equal tokens, at equal FLOPs, at equal parameters."""
    plan, recipe, unit = study.plan, study.plan.recipe, study.unit
    title = (
        f"{name} ({EXPERIMENTS[name].figure}) at size {plan.size}: {recipe.steps:,} steps of {recipe.batch} x"
        f" {recipe.context} tokens, bits/{unit} as mean ± std of n = {plan.seeds} seed(s),"
        " ratios to the baseline paired by seed with 95 % interval"
    )
    columns = (
        *("model", "baseline", "parameters", "training MFLOPs/token", f"bits/{unit}", "equal tokens", "verdict"),
        *("equal FLOPs: after", f"bits/{unit} then", "equal FLOPs", "verdict then", "equal parameters", "verdict so"),
    )
    names = {row.key: row.name for row in rows}
    return Table(title, columns, [_row(row, names) for row in rows])


def rates(study: StudyOutcome) -> Table:
    """The best learning rate of each model, found seed by seed between those tried."""
    cells: list[list[Cell]] = []
    optima = {key: tuned(study.state, key) for key in TUNED}
    bits = {key: [o.bits for o in each] for key, each in optima.items()}
    rivals = [key for key in optima if key != ROTARY]
    against = dict(zip(rivals, correct([between(bits[key], bits[ROTARY]) for key in rivals]), strict=True))
    for key, each in optima.items():
        if not each:
            cells.append([key.title, "too many runs diverged", NOTHING, NOTHING, NOTHING])
            continue
        edges = sum(optimum.at_edge for optimum in each)
        edge = f" (at the edge for {edges} of {len(each)})" if edges else ""
        rate = shown_spread(spread([optimum.rate for optimum in each]), 5)
        cells.append([key.title, f"{rate}{edge}", shown_spread(spread(bits[key])), *_comparison(against.get(key))])
    columns = ("model", "best rate", f"bits/{study.unit} there", f"ratio to {ROTARY.title}", "verdict")
    return Table("Each at its best learning rate, by Akima interpolation over log2 of the rate", columns, cells)


def _row(row: Summed, names: Mapping[Key, str]) -> list[Cell]:
    first = row.records[0]
    cells: list[Cell] = [
        row.name,
        NOTHING if row.variant.against is None else names[row.variant.against],
        f"{first.parameters:,}" + ("" if row.share is None else f" ({row.share:.3f})"),
        f"{first.training / 1e6:,.3f}",
    ]
    if row.diverged:
        return [*cells, f"diverged {row.diverged}/{len(row.records)}", *[NOTHING] * 8]
    return [
        *cells,
        shown_spread(spread(row.finals)),
        *_comparison(row.tokens),
        f"{row.affordable:,.0f} steps",
        shown_spread(spread(row.at_equal_flops)),
        *_comparison(row.flops),
        *_comparison(row.parameters),
    ]


def _comparison(comparison: PairedComparison | None) -> list[Cell]:
    if comparison is None:
        return [NOTHING, NOTHING]
    return [shown_ratio(comparison), shown_verdict(comparison.conclusion, comparison.n)]


# --- pictures ----------------------------------------------------------------------------------------

# The first validations, where everything is far from what it will be, would flatten the rest.
SHOWN_FROM = 4
BASELINE = ("baseline", 1.0)


def ratios(study: StudyOutcome, rows: Sequence[Summed]) -> Curves:
    """For each baseline two panels: ratios of bits along the way, and the last ones against training FLOPs."""
    recipe, unit = study.plan.recipe, study.unit
    panels = []
    for base in rows:
        group = [row for row in rows if row.variant.against == base.key and row.tokens is not None]
        if group:
            along = [_along(recipe.batch * recipe.context, row, base) for row in group]
            by_cost = [_by_cost(row) for row in group]
            spent = sorted(curve.x[0] for curve in by_cost)
            title = f"against {base.name}"
            panels.append(Panel(title, "tokens", f"bits/{unit} over the baseline's", along, BASELINE))
            ends = (spent[0], spent[-1])
            panels.append(Panel("after the last step", "training kFLOPs per token", "", by_cost, BASELINE, ends))
    return Curves(panels or [Panel("too many runs diverged", "tokens", f"bits/{unit}", [])])


def learning_rates(study: StudyOutcome) -> Curves:
    """Mean bits of each model over the learning rate, and the range over its seeds."""
    curves = []
    for key in TUNED:
        at = {1e4 * rate: study.state.of(replace(key, rate=rate)) for rate in RATES}
        finals = {x: list(row.finals.values()) for x, row in at.items() if row is not None and not row.diverged}
        means = [math.fsum(bits) / len(bits) for bits in finals.values()]
        low, high = ([end(bits) for bits in finals.values()] for end in (min, max))
        curves.append(Curve(key.title, list(finals), means, low, high))
    ticks = [1e4 * rate for rate in RATES]
    panel = Panel("mean and range over seeds", "learning rate x 10,000", f"bits/{study.unit}", curves, ticks=ticks)
    return Curves([panel])


def _along(tokens: int, row: Summed, base: Summed) -> Curve:
    """The geometric mean over the seeds at each validation; a step trains on so many tokens."""
    first = min(SHOWN_FROM, len(row.records[0].along) - 1)
    steps = [step for step, _ in row.records[0].along][first:]
    pairs = [(a.along[first:], b.along[first:]) for a, b in zip(row.records, base.records, strict=True)]
    means = [
        math.exp(math.fsum(math.log(a[i][1] / b[i][1]) for a, b in pairs) / len(pairs)) for i in range(len(steps))
    ]
    return Curve(row.name, [step * tokens for step in steps], means)


def _by_cost(row: Summed) -> Curve:
    """One point: the ratio at equal tokens with its 95 % interval."""
    assert row.tokens is not None
    ratio = row.tokens.ratio
    low, high = (ratio.mean if value is None else value for value in (ratio.low, ratio.high))
    return Curve(row.name, [row.records[0].training / 1e3], [ratio.mean], [low], [high])


# --- readings ----------------------------------------------------------------------------------------


def _pairs(study: StudyOutcome, name: str) -> list[Compared]:
    """Every comparison that a statement makes, and every row's with its baseline."""
    keys = [(e.model, e.base) for _, expectations in EXPECTATIONS.get(name, ()) for e in expectations]
    variants = [row for row in study.plan.rows if isinstance(row, Variant)]
    against = [(row.key, row.against) for row in variants if row.against is not None]
    return study.state.compared(dict.fromkeys([*keys, *against]))


def _tuned_pairs(optima: Mapping[Key, Sequence[Optimum]]) -> list[Compared]:
    """Full CEM against both Llamas, each at its best learning rate."""
    bits = {key: {i: o.bits for i, o in enumerate(each)} for key, each in optima.items() if each}
    bases = [base for base in (ROTARY, ALIBI) if FULL in bits and base in bits]
    return [
        compared(f"{FULL.title}, tuned", f"{base.title}, tuned", bits[FULL], bits[base], keys=(FULL, base))
        for base in bases
    ]


def _best(key: Key, optima: Sequence[Optimum]) -> dict[str, Any]:
    rate = spread([o.rate for o in optima]).mean
    return {"model": key.title, "rate": rate, "at_edge": any(o.at_edge for o in optima)}
