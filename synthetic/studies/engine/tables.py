"""The tables that every study with rows tuned separately can show."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

from cemverify.processes.cores import on_one_thread
from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_ratio, shown_share, shown_spread
from cemverify.results.statistics import spread
from synthetic.studies.engine.comparisons import Compared, pair_of
from synthetic.studies.engine.designs import LAYERS, cost, parameters
from synthetic.studies.engine.plan import JUDGING_WINDOWS, TUNING_WINDOWS, VALIDATIONS, WHOLE_WINDOWS, Plan
from synthetic.studies.engine.rates import rate
from synthetic.studies.engine.readings import counted
from synthetic.studies.engine.study import StudyOutcome
from synthetic.studies.engine.trials import TrialRecord
from synthetic.studies.engine.tuning import StudyState, trainings
from synthetic.training import footprint
from synthetic.training.machine import peak_flops

# NVIDIA's data sheet of an H100 SXM: dense bfloat16, without sparsity.
H100_TFLOPS = 989.0
# The share of it that large training runs reach.
GPU_UTILISATION = 0.4
# Tiny models reached 21 to 24 % of a core's speed at matrix products, validation included, where it was measured.
CPU_UTILISATION = 0.22


def measured(study: StudyOutcome) -> Table:
    """How it was measured, in numbers, which docs/language.md explains."""
    plan, recipe, design = study.plan, study.plan.recipe, study.plan.rows[0].design
    windows = f"{recipe.steps:,} steps of {recipe.batch} windows of {recipe.context}"
    rows = [
        ["models", f"at most {max(parameters(row.design) for row in plan.rows):,} parameters"],
        ["trained on", f"{recipe.tokens:,} tokens of {study.corpus}"],
        ["", f"{windows}{', through torch.compile' if plan.compiled else ''}"],
        ["", f"{plan.per_parameter:.3g} tokens for each parameter of Llama"],
    ]
    if plan.papers:
        rows.append(["judged", f"with {plan.seeds} seeds on {WHOLE_WINDOWS} windows, {VALIDATIONS} times on the way"])
    else:
        positions = {"alibi": "ALiBi's", "rotary": "rotary"}[design.position]
        rows = [["layers", f"{LAYERS[plan.replaced]}, P {design.preconditioner}, {positions} positions"], *rows]
        short, long = plan.shares
        rows += [
            ["rates found", f"with {counted(plan.tuning_seeds, 'seed')} at {short:.3g} and {long:.3g} of the length"],
            ["", f"on {TUNING_WINDOWS} windows of the first half of the validation part"],
            ["judged", f"with {counted(plan.seeds, 'other seed')} on {JUDGING_WINDOWS} windows of the second half"],
        ]
    if plan.registered:
        rows.append(["plan", plan.name])
    if study.floor is not None:
        rows.append(["the source", f"{study.floor:.4f} bits/{study.unit}, which no model can go below"])
    return Table("How it was measured", ("what", "how"), rows)


def models(study: StudyOutcome, pairs: Sequence[Compared], base: Hashable) -> Table:
    """Every row: what it is, its learning rate, its bits, and its ratio to one row.

    Args:
        pairs: the study's comparisons. base: the key of the row that the last column compares with.
    """
    plan, unit, baseline = study.plan, study.unit, study.plan.row(base)
    rows: list[list[Cell]] = []
    for tuned in study.state.rows:
        design, finals = tuned.row.design, list(tuned.finals.values())
        pair = pair_of(pairs, tuned.row.key, base)
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
    title = f"The rows, each at its own learning rate: bits/{unit} on the judging half, mean ± std over seeds"
    columns = ("row", "what", "parameters", "training MFLOPs/token", "rate", "seeds", f"bits/{unit}")
    return Table(title, (*columns, f"ratio to {base if baseline is None else baseline.name}"), rows)


def comparisons(state: StudyState, pairs: Sequence[Compared]) -> Table:
    """Every comparison, and the difference that it could have detected."""
    rows: list[list[Cell]] = []
    for pair in pairs:
        c = pair.comparison
        rows.append(
            [
                f"{pair.model} / {pair.base}",
                len(pair.seeds),
                shown_ratio(c),
                ", ".join(f"{value:.4f}" for value in pair.ratios) or NOTHING,
                NOTHING if c is None or c.holm is None else f"{c.holm:.4f}",
                shown_share(None if c is None else c.detectable),
                shown_share(_windows(state, pair)),
                pair.verdict,
            ]
        )
    columns = ("comparison", "seeds", "ratio [95 %]", "each seed", "p (Holm)", "detectable", "error from the text")
    return Table("Comparisons at equal tokens, paired by seed", (*columns, "verdict"), rows)


def _windows(state: StudyState, pair: Compared) -> float | None:
    """The contribution of the scored text to the error of a comparison."""
    rows = [row for key in pair.keys if (row := state.of(key)) is not None]
    records = [[r for s in pair.seeds if (r := row.judged[s]) is not None] for row in rows]
    return error_from_windows(*records) if len(records) == 2 else None


def error_from_windows(first: Sequence[TrialRecord], second: Sequence[TrialRecord]) -> float | None:
    """The standard error of a comparison of two rows, paired by seed, due to the choice of windows; None if unknown.

    It is the standard error of the log ratio, averaged over seeds, over the groups of windows. All seeds share the
    windows, so more windows make it smaller, but more seeds do not.
    """
    pairs = [(a.groups, b.groups) for a, b in zip(first, second, strict=True) if a.groups and b.groups]
    if not pairs or len(pairs[0][0]) < 2:
        return None
    groups = len(pairs[0][0])
    # every seed has the same windows, so their effect remains in the mean over seeds
    means = [math.fsum(math.log(a[g] / b[g]) for a, b in pairs) / len(pairs) for g in range(groups)]
    deviation = spread(means).std
    assert deviation is not None
    return deviation / math.sqrt(groups)


def tuning(state: StudyState, unit: str) -> Table:
    """Every tuning run: bits per byte on the tuning half."""
    tried = sorted({k for tuned in state.rows for curve in tuned.curves for k in curve.bits})
    rows: list[list[Cell]] = []
    for tuned in state.rows:
        for curve in tuned.curves:
            figures: list[Cell] = [_bits(curve.bits.get(k), k == curve.best) for k in tried]
            taken = NOTHING if tuned.rate is None or curve is not tuned.curves[-1] else f"{tuned.rate:.3g}"
            rows.append([tuned.row.name, f"{curve.share:.3g}", *figures, taken])
    columns = ("row", "share of the length", *(f"{rate(k):.3g}" for k in tried), "rate taken")
    return Table(f"Tuning: bits/{unit} at each learning rate, the best of a line starred", columns, rows)


def speed_at(gpu: bool, tflops: float | None) -> tuple[float, str]:
    """The useful FLOP/s of a GPU, or of one core of this machine, and in words where the figure comes from.

    Args:
        tflops: useful TFLOP/s as given by the user.
    """
    if tflops is not None:
        return tflops * 1e12, f"{tflops:g} useful TFLOP/s of one device, as given"
    if not gpu:
        with on_one_thread():
            peak = peak_flops("cpu", "float32")
        of = f"the {peak / 1e9:,.0f} GFLOP/s that one core of this machine reaches"
        return CPU_UTILISATION * peak, f"{CPU_UTILISATION:.0%} of {of}"
    of = f"the {H100_TFLOPS:g} TFLOP/s of one H100"
    return GPU_UTILISATION * H100_TFLOPS * 1e12, f"{GPU_UTILISATION:.0%} of {of}"


def costs(study: str, plan: Plan, flops_per_second: float, of: str) -> Table:
    """The cost of a study, before it begins, at a speed; `of` says where that comes from (`speed_at`)."""
    rows: list[list[Cell]] = []
    total, counts = 0.0, trainings(plan)
    for row in plan.rows:
        of_one = cost(row.design, plan.recipe.context).training * plan.recipe.tokens
        hours = of_one * counts[row.name] / flops_per_second / 3600
        total += hours
        count = parameters(row.design)
        rows.append(
            [
                *(row.name, f"{count:,}", f"{of_one:.3g}", f"{counts[row.name]:.3g}", _hours(hours)),
                *(
                    _bytes(footprint.PER_PARAMETER * count),
                    _bytes(footprint.activations(row.design.looped, plan.recipe.context)),
                ),
                *(_bytes(12 * count), row.why or NOTHING),
            ]
        )
    rows.append(["all", NOTHING, NOTHING, NOTHING, _hours(total), *[NOTHING] * 4])
    title = (
        f"Cost of {study}{'' if plan.papers else f', {plan.replaced},'} at size {plan.size}: {plan.recipe.tokens:,}"
        f" tokens a training; hours of one device, at {of}; memory of weights, gradients and optimiser,"
        " and what a window keeps for its backward pass in bfloat16 on a GPU"
    )
    columns = (
        "row",
        "parameters",
        "FLOPs of a training",
        "trainings",
        "hours",
        "memory",
        "kept",
        "checkpoint",
        "for",
    )
    return Table(title, columns, rows)


def _bits(bits: float | None, best: bool) -> str:
    if bits is None:
        return NOTHING
    return "diverged" if math.isinf(bits) else f"{bits:.4f}{'*' if best else ''}"


def _bytes(count: int) -> str:
    return f"{count / 1e9:,.2f} GB" if count >= 1e9 else f"{count / 1e6:,.1f} MB"


def _hours(hours: float) -> str:
    return f"{hours:,.1f}" if hours >= 1 else f"{hours:.2f}"
