"""The tables of the study, for people; every figure in them is in the result file as a number too."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_ratio, shown_share, shown_spread
from cemverify.results.statistics import spread
from synthetic.language.paper.estimates import Speed
from synthetic.language.training.steps import Steps
from synthetic.language.tuned import designs, power
from synthetic.language.tuned.designs import cost, parameters
from synthetic.language.tuned.halving import rate
from synthetic.language.tuned.plan import SecondStepPlan
from synthetic.language.tuned.study import State, trainings
from synthetic.language.tuned.summary import Summary


def models(plan: SecondStepPlan, found: State, summary: Summary, unit: str) -> Table:
    """Every row: what it is, the rate it got, its bits, and against T = 1."""
    rows: list[list[Cell]] = []
    for tuned in found.rows:
        design, finals = tuned.row.design, list(tuned.finals.values())
        pair = next((p for p in summary.pairs if p.model == tuned.row.name), None)
        rows.append(
            [
                tuned.row.name,
                tuned.row.why,
                f"{parameters(design):,}",
                f"{cost(design, plan.recipe.context).training / 1e6:,.3f}",
                "not tuned yet" if tuned.rate is None else f"{tuned.rate:.3g}",
                len(finals),
                shown_spread(spread(finals) if finals else None),
                shown_ratio(None if pair is None else pair.comparison),
            ]
        )
    title = (
        f"The rows: {plan.recipe.steps:,} steps of {plan.recipe.batch} x {plan.recipe.context} tokens, each at its"
        f" own learning rate{', through torch.compile' if plan.compiled else ''}; bits/{unit} on the judging half,"
        " mean ± std over seeds"
    )
    columns = (
        "row",
        "there for",
        "parameters",
        "training MFLOPs/token",
        "rate",
        "seeds",
        f"bits/{unit}",
        "ratio to T = 1",
    )
    return Table(title, columns, rows)


def pairs(summary: Summary) -> Table:
    """Every comparison, and what it could have seen."""
    rows: list[list[Cell]] = []
    for pair in summary.pairs:
        c = pair.comparison
        rows.append(
            [
                f"{pair.model} / {pair.base}",
                len(pair.seeds),
                shown_ratio(c),
                ", ".join(f"{value:.4f}" for value in pair.ratios) or NOTHING,
                NOTHING if c is None or c.holm is None else f"{c.holm:.4f}",
                shown_share(None if c is None else c.detectable),
                shown_share(None if pair.windows is None else pair.windows.error),
                pair.verdict,
            ]
        )
    columns = (
        "comparison",
        "seeds",
        "ratio [95 %]",
        "each seed",
        "p (Holm)",
        "detectable",
        "error from the text",
        "verdict",
    )
    return Table("Comparisons at equal tokens, paired by seed", columns, rows)


def beyond(plan: SecondStepPlan, summary: Summary) -> list[Table]:
    """Each row beyond the paper against its controls, with its verdict; no table where the study has none."""
    if not summary.beyond:
        return []
    bases = (designs.one(), designs.one(plan.depth), designs.several(plan.depth), designs.WIDER, designs.TWICE)
    rows: list[list[Cell]] = []
    for answer in summary.beyond:
        against = [summary.pair(answer.row, base) for base in bases]
        shown = [shown_ratio(None if pair is None else pair.comparison) for pair in against]
        rows.append([answer.row, *shown, answer.verdict])
    columns = ("row", *(f"over {base}" for base in bases), "a second step")
    return [Table(f"Beyond the paper: the same rule for each row in the place of T = {plan.depth}", columns, rows)]


def tuning(found: State, unit: str) -> Table:
    """Every training of the tuning: bits per byte on the tuning half."""
    tried = sorted({k for tuned in found.rows for curve in tuned.curves for k in curve.bits})
    rows: list[list[Cell]] = []
    for tuned in found.rows:
        for curve in tuned.curves:
            shown: list[Cell] = [_bits(curve.bits.get(k), k == curve.best) for k in tried]
            taken = NOTHING if tuned.rate is None or curve is not tuned.curves[-1] else f"{tuned.rate:.3g}"
            rows.append([tuned.row.name, f"{curve.share:.3g}", *shown, taken])
    columns = ("row", "share of the length", *(f"{rate(k):.3g}" for k in tried), "rate taken")
    return Table(f"Tuning: bits/{unit} at each learning rate, the best of a line starred", columns, rows)


def steps(found: State) -> Table:
    """How the steps lie in each layer, at the start and after training, of the first judged seed."""
    rows: list[list[Cell]] = []
    for tuned in found.rows:
        record = next((r for r in tuned.judged.values() if r is not None), None)
        looks = () if record is None else (("start", record.start), ("trained", record.end))
        rows += [_layer(tuned.row.name, when, layer) for when, of_layers in looks for layer in of_layers]
    columns = (
        "row",
        "layer",
        "when",
        "rms of the stream",
        "length of each step / stream",
        "cosine to the step before",
        "cosine of N(x_t), N(h)",
        "energy, step by step",
    )
    return Table("How the steps lie, means over tokens", columns, rows)


def costs(plan: SecondStepPlan, speed: Speed) -> Table:
    """What the study takes, before it is begun."""
    rows: list[list[Cell]] = []
    total = 0.0
    for row in plan.rows:
        of_one = cost(row.design, plan.recipe.context).training * plan.recipe.tokens
        hours = of_one * trainings(plan)[row.name] / speed.flops_per_second / 3600
        total += hours
        share = trainings(plan)[row.name]
        rows.append([row.name, f"{parameters(row.design):,}", f"{of_one:.3g}", f"{share:.3g}", _hours(hours)])
    rows.append(["all", NOTHING, NOTHING, NOTHING, _hours(total)])
    title = (
        f"Cost of second-step, {plan.replaced}, at size {plan.size}: {plan.recipe.tokens:,} tokens a training;"
        f" hours of one device, at {speed.words}"
    )
    return Table(title, ("row", "parameters", "FLOPs of a training", "trainings", "hours"), rows)


def need(plan: SecondStepPlan, summary: Summary | None) -> Table:
    """The power analysis, with the spread that was measured if three seeds tell it."""
    if summary is not None and summary.deviation:
        return power.needs(summary.deviation, f"measured here, T = {plan.depth} over T = 1")
    return power.needs(power.PILOT_SPREAD, "of pilots with D = 64")


def _layer(name: str, when: str, layer: Steps) -> list[Cell]:
    return [
        name,
        layer.place,
        when,
        f"{layer.stream:.3f}",
        _list(layer.lengths),
        _list(layer.turns),
        _list(layer.nearness[1:]),
        " > ".join(f"{energy:.1f}" for energy in layer.energies),
    ]


def _bits(bits: float | None, best: bool) -> str:
    if bits is None:
        return NOTHING
    return "diverged" if math.isinf(bits) else f"{bits:.4f}{'*' if best else ''}"


def _list(values: Sequence[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in values) or NOTHING


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}"
