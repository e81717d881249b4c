"""Pictures of language models, of published ratios, and of speed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from matplotlib.figure import Figure

from reports.kinds import language
from reports.pictures.charts import Curve, Panel, stacked
from reports.pictures.drawing import (
    COLOURS,
    INK,
    QUIET,
    Picture,
    picture,
    shortened,
)
from reports.winners import winner

# Models in one picture; more than these are in the table.
_MOST_MODELS = 14


@dataclass(frozen=True)
class _Model:
    name: str
    parameters: int
    flops: float
    bits: float
    error: float


def of_language(content: Mapping[str, Any]) -> Iterator[Picture]:
    """Losses, and bits per byte against what they cost; learning rates, where a study varies them."""
    if "models" in content:
        yield from _losses(content)
        models = [
            _Model(
                m["name"],
                m["parameters"],
                m["flops_per_token"]["training"],
                m["validation_bits_per_byte"],
                m["validation_standard_error"] or 0.0,
            )
            for m in content["models"]
            if m["validation_bits_per_byte"] is not None
        ]
        bigram = content["corpus"]["bits_per_byte"].get("bigram")
        level = ("bigram model", bigram) if bigram else None
        yield from _costs(models, _clear(models), level, "standard error over windows")
    elif "rows" in content:
        rows: dict[str, Mapping[str, Any]] = {}  # of each model that with the best of its learning rates
        for row in content["rows"]:
            before = rows.get(_model(row))
            if row["bits"] is not None and (before is None or row["bits"]["mean"] < before["bits"]["mean"]):
                rows[_model(row)] = row
        models = [
            _Model(
                name,
                r["records"][0]["parameters"],
                r["records"][0]["training"],
                r["bits"]["mean"],
                r["bits"]["std"] or 0.0,
            )
            for name, r in rows.items()
        ]
        best = winner({name: language.bits(row) for name, row in rows.items()})
        yield from _rates(content)
        yield from _costs(models, best, None, "standard deviation over seeds")


def _model(row: Mapping[str, Any]) -> str:
    """The name of a row's model, without its learning rate."""
    rate = row["variant"].get("learning_rate")
    name = str(row["variant"]["name"])
    return name if rate is None else name.removesuffix(f" at {rate:g}")


def _clear(models: Sequence[_Model]) -> str | None:
    """The model with the fewest bits, if every other is more than two standard errors of the difference away."""
    best = min(models, key=lambda model: model.bits, default=None)
    if best is None or any(
        m.bits - best.bits <= 2 * math.hypot(m.error, best.error) for m in models if m is not best
    ):
        return None
    return best.name


def of_readings(content: Mapping[str, Any]) -> Iterator[Picture]:
    """The ratios with their intervals."""
    ratios = [r for r in content["ratios"] if r["interval95"]]
    if not ratios:
        return
    better = sum(r["interval95"][1] < 1 for r in ratios)
    worse = sum(r["interval95"][0] > 1 for r in ratios)

    words = [_compared(r) for r in ratios]
    row_height = 0.34 if any("\n" in word for word in words) else 0.24

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        for row, r in enumerate(ratios):
            low, high = r["interval95"]
            colour = COLOURS[0] if high < 1 else COLOURS[1] if low > 1 else QUIET
            axis.plot([low, high], [row, row], color=colour, linewidth=1.8)
            axis.plot([r["mean"]], [row], "o", color=colour)
        axis.axvline(1, color=INK, linewidth=1)
        axis.set_yticks(range(len(ratios)), words, fontsize=7)
        axis.set_ylim(len(ratios) - 0.4, -0.6)
        axis.set_xlabel(f"ratio of {shortened(content.get('figure', 'errors'), 40)}, 95 %")
        axis.grid(axis="y", visible=False)

    rows = [[r.get("on"), r["model"], r["baseline"], r["mean"], *r["interval95"]] for r in ratios]
    study = shortened(content["study"], 40)
    title = f"{study}: {better} of {len(ratios)} comparisons favour the model, {worse} its baseline"
    about = "A mark for each comparison with its 95 % interval; left of 1 the model is better than its baseline."
    yield picture(
        "ratios",
        title,
        about,
        0.8 + row_height * len(ratios),
        draw,
        ["on", "model", "baseline", "ratio", "low", "high"],
        rows,
    )


def _compared(ratio: Mapping[str, Any]) -> str:
    """What is compared with what, on one line if that is short."""
    model = shortened(": ".join(filter(None, (ratio.get("on"), ratio["model"]))), 34)
    baseline = shortened(ratio["baseline"], 31)
    return f"{model} to {baseline}" if len(model) + len(baseline) < 32 else f"{model}\nto {baseline}"


def of_benchmarks(content: Mapping[str, Any]) -> Iterator[Picture]:
    """Attention as a roofline: what is reached of what the machine can do."""
    found = [row for row in (content["benchmarks"].get("attention") or {"rows": []})["rows"] if row["seconds"]]
    if not found:
        return
    speed = next((b["peak_flops"] for b in content["benchmarks"].values() if "peak_flops" in b), None)
    # by variant and T, at growing lengths; T comes first in the name of a kind: "T=2, ALiBi"
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in found:
        T, _, variant = row["attention"].partition(", ")
        lines = points.setdefault(variant or "no bias, no diagonal", {})
        lines.setdefault("MHA", [])
        for name, flops, seconds in (("MHA", "baseline_flops", "baseline_seconds"), (T, "flops", "seconds")):
            point = _reached(row, row[flops], row[seconds])
            if name != "MHA" or all(point[0] != x for x, _ in lines[name]):
                lines.setdefault(name, []).append(point)
    panels = [
        Panel(
            *(variant, "FLOPs per byte", "GFLOP/s"),
            [Curve(name, *zip(*sorted(pairs), strict=True)) for name, pairs in lines.items()],
            ("peak", speed / 1e9) if speed else None,
            y_scale="from 0",
        )
        for variant, lines in points.items()
    ]
    top = max(max(curve.y) for panel in panels for curve in panel.curves)
    share = f", {top * 1e9 / speed:.0%} of the speed of a product of square matrices" if speed else ""
    yield stacked(
        "roofline",
        f"Attention reaches up to {top:.0f} GFLOP/s{share}",
        "FLOPs that the formula needs in a second against FLOPs for each byte of input, output and weights; a panel "
        "for each variant on one scale, a line for each T, a point for each length, the longest on the right. The "
        "dashed line is what square products reach on this machine.",
        panels,
        ("attention", "T", "FLOPs per byte", "GFLOP/s"),
        across=2,
    )


def _reached(row: Mapping[str, Any], flops: float, seconds: Sequence[float]) -> tuple[float, float]:
    """FLOPs for each byte that must move, and GFLOP/s, of the forward and the backward pass."""
    tokens = row["batch"] * row["tokens"]
    # h and x in and their gradients out, and four matrices with theirs, once
    moved = 4 * (4 * tokens * row["dim"] + 8 * row["dim"] ** 2)
    total = 3 * flops * tokens
    return total / moved, total / median(seconds) / 1e9


# --- language -------------------------------------------------------------------------------------


def _losses(content: Mapping[str, Any]) -> Iterator[Picture]:
    found = {
        m["name"]: _smooth(m["training_bits_per_token"]) for m in content["models"] if m["training_bits_per_token"]
    }
    curves = [Curve(name, *zip(*points, strict=True)) for name, points in found.items() if len(points) > 1]
    if not curves:
        return
    shown = curves[:_MOST_MODELS]
    best = min(shown, key=lambda curve: curve.y[-1])
    bigram = content["corpus"]["bits_per_byte"].get("bigram")
    level = ("bigram model", bigram) if bigram else None
    label = "training loss, bits per token"
    yield stacked(
        "loss-curves",
        f"At the end of this training {shortened(best.name, 30)} has the lowest loss",
        "Training loss against the step, averaged over neighbouring steps; the dashed line is the bigram model.",
        [Panel("", "training step", label, shown, level, x_scale="linear", y_scale="log")],
        ("panel", "model", "step", "bits per token"),
    )


def _costs(
    models: Sequence[_Model], best: str | None, level: tuple[str, float] | None, what: str
) -> Iterator[Picture]:
    """Bits per byte against parameters and against FLOPs.

    Args:
        best: the model that a test calls the best; None if none is. level: a yardstick. what: the error bars.
    """
    if not models:
        return
    shown = sorted(models, key=lambda model: model.bits)[:_MOST_MODELS]
    panels = []
    for label, at in (("parameters", "parameters"), ("training FLOPs per token", "flops")):
        curves = [Curve(m.name, [getattr(m, at)], [m.bits], [m.bits - m.error], [m.bits + m.error]) for m in shown]
        panels.append(Panel("", label, "validation bits per byte", curves, level, x_scale="linear"))
    least = shown[0]
    title = (
        f"{shortened(best, 30)} has the fewest bits per byte, {least.bits:.3f}"
        if best == least.name
        else f"{least.bits:.3f} bits per byte is the least, and no model surely the best"
    )
    yield stacked(
        "bits-per-byte",
        title,
        "Validation bits per byte of each model against its parameters and against its training FLOPs, on one scale; "
        f"bars are the {what}.",
        panels,
        ("panel", "model", "parameters or FLOPs", "bits per byte"),
    )


def _rates(content: Mapping[str, Any]) -> Iterator[Picture]:
    """Bits per byte against the learning rate, of a study in which models have several."""
    found: dict[str, list[tuple[float, list[float]]]] = {}
    for row in content["rows"]:
        rate = row["variant"].get("learning_rate")
        if rate is not None and row["bits"] is not None:
            found.setdefault(_model(row), []).append((rate, language.bits(row)))
    curves = []
    for name, points in found.items():
        rates, bits = zip(*sorted(points), strict=True)
        if len(rates) > 2:
            curves.append(Curve(name, rates, list(map(fmean, bits)), list(map(min, bits)), list(map(max, bits))))
    if not curves:
        return
    ticks = sorted({rate for curve in curves for rate in curve.x})
    said = ", ".join(f"{shortened(c.name, 20)} {c.x[c.y.index(min(c.y))]:g}" for c in curves[:4])
    yield stacked(
        "learning-rates",
        f"Of the rates that were tried, these have the fewest bits: {said}",
        "Bits per byte against the learning rate, mean and range over seeds; a line for each model.",
        [Panel("", "learning rate", "validation bits per byte", curves, ticks=ticks, x_scale="log")],
        ("panel", "model", "rate", "bits per byte"),
    )


def _smooth(losses: Sequence[float | None]) -> list[tuple[int, float]]:
    """At most 80 means over neighbouring steps, as single batches scatter."""
    sound = [(i + 1, loss) for i, loss in enumerate(losses) if loss is not None]
    width = max(1, len(sound) // 80)
    chunks = [sound[i : i + width] for i in range(0, len(sound), width)]
    return [(chunk[-1][0], fmean(loss for _, loss in chunk)) for chunk in chunks]
