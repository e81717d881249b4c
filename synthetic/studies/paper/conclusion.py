"""What an experiment shows about the paper's statements, and how its page shows it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_ratio, shown_spread, shown_verdict
from cemverify.results.statistics import PairedComparison, correct, spread
from synthetic.studies.engine import report
from synthetic.studies.engine.comparisons import Compared, compared
from synthetic.studies.engine.designs import parameters
from synthetic.studies.engine.pages import ratio_dots
from synthetic.studies.engine.readings import shown_statements
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.engine.tuning import Tuned
from synthetic.studies.paper import statements
from synthetic.studies.paper.rows import ALIBI, EXPERIMENTS, FULL, ROTARY, Key, Variant
from synthetic.studies.paper.statements import EXPECTATIONS
from synthetic.studies.paper.summary import Optimum, Summed, against_of, between, summarise, tuned

TUNED = (ROTARY, ALIBI, FULL, replace(FULL, widened=True))  # with several learning rates


def read(study: StudyOutcome, name: str) -> Findings:
    """The findings of the experiment with this name, once all its models are trained."""
    plan = study.plan
    rows, figure = summarise(plan.recipe.steps, study.state.rows), EXPERIMENTS[name].figure
    read = statements.read(name, study.state)
    shown = [shown_statements(read), comparisons(study, name, rows)]
    optima = {key: tuned(study.state, key) for key in TUNED} if name == "learning-rate" else {}
    if optima:
        shown.append(rates(study, optima))
    pairs = [*_pairs(study, name), *_tuned_pairs(optima)]
    readings = Counter(statement.reading for statement in read)
    findings = report.findings(
        study,
        f"{name.capitalize()} in a language model, {figure}, size {plan.size}",
        f"The paper's statements, read here: {', '.join(f'{n} {reading}' for reading, n in readings.items())}.",
        "With small first embeddings a second step costs bits by itself: whether one can pay, `second-step` asks.",
        pictures=ratio_dots(pairs, plan.rows[0].key),
        shown=shown,
        figures={
            "parameters": max(parameters(row.design) for row in plan.rows),
            "recipe": f"{plan.recipe.steps:,} steps on {study.corpus}, AdamW with the settings of Table 2",
            "best_rates": [
                {
                    "model": key.title,
                    "rate": spread([o.rate for o in optima[key]]).mean,
                    "at_edge": any(o.at_edge for o in optima[key]),
                }
                for key in (FULL, ROTARY, ALIBI)
                if optima.get(key)
            ],
        },
        more={"statements": [asdict(statement) for statement in read]},
    )
    return replace(findings, compared=pairs)


# --- tables ------------------------------------------------------------------------------------------


def comparisons(study: StudyOutcome, name: str, rows: Sequence[Summed]) -> Table:
    """Every model at equal tokens and at equal FLOPs; a widened one also has the baseline's number of parameters."""
    plan, recipe, unit = study.plan, study.plan.recipe, study.unit
    title = (
        f"{name} ({EXPERIMENTS[name].figure}) at size {plan.size}: {recipe.steps:,} steps of {recipe.batch} x"
        f" {recipe.context} tokens, bits/{unit} as mean ± std of n = {plan.seeds} seed(s),"
        " ratios to the baseline paired by seed with 95 % interval"
    )
    columns = (
        *("model", "baseline", "parameters", "training MFLOPs/token", f"bits/{unit}", "equal tokens", "verdict"),
        *("equal FLOPs: after", f"bits/{unit} then", "equal FLOPs", "verdict then"),
    )
    models = {row.model.row.key: row.model for row in rows}
    return Table(title, columns, [_row(row, models.get(against_of(row.model))) for row in rows])


def rates(study: StudyOutcome, optima: Mapping[Key, Sequence[Optimum]]) -> Table:
    """The best learning rate of each model, interpolated seed by seed between those tried."""
    cells: list[list[Cell]] = []
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


def _row(row: Summed, base: Tuned | None) -> list[Cell]:
    first = row.model.records[0]
    share = "" if base is None else f" ({first.parameters / base.records[0].parameters:.3f})"
    cells: list[Cell] = [
        row.model.row.name,
        NOTHING if base is None else base.row.name,
        f"{first.parameters:,}{share}",
        f"{first.training / 1e6:,.3f}",
    ]
    if row.model.diverged:
        return [*cells, f"diverged {row.model.diverged}/{len(row.model.records)}", *[NOTHING] * 6]
    return [
        *cells,
        shown_spread(spread(row.finals)),
        *_comparison(row.tokens),
        f"{row.affordable:,.0f} steps",
        shown_spread(spread(row.at_equal_flops)),
        *_comparison(row.flops),
    ]


def _comparison(comparison: PairedComparison | None) -> list[Cell]:
    if comparison is None:
        return [NOTHING, NOTHING]
    return [shown_ratio(comparison), shown_verdict(comparison.conclusion, comparison.n)]


# --- readings ----------------------------------------------------------------------------------------


def _pairs(study: StudyOutcome, name: str) -> list[Compared]:
    """Every comparison that a statement makes, and that of every row with its baseline."""
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
