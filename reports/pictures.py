"""The pictures of each kind of result.

Each makes one statement, says it in its title, labels its lines directly, and has its data as CSV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean, median
from typing import Any

from matplotlib.figure import Figure

from cemverify.console.escaping import brief
from reports.kinds.readings import verdicts
from synthetic.figures.charts import Curve, DotRow, Panel, draw_dots, stacked
from synthetic.figures.drawing import INK, Picture, picture
from synthetic.studies.recursion.pictures import of_recursion

# The most models in one picture; the table has all.
_MOST_MODELS = 14


def of_readings(content: Mapping[str, Any]) -> Iterator[Picture]:
    """The ratios with their intervals; the other pictures of a study are beside its page."""
    ratios = [r for r in content["ratios"] if r["interval95"]]
    if not ratios:
        return
    told = [verdict for r, verdict in zip(content["ratios"], verdicts(content), strict=True) if r["interval95"]]
    lines = [
        DotRow(_compared(r), (), r["mean"], r["interval95"][0], r["interval95"][1], verdict=verdict)
        for r, verdict in zip(ratios, told, strict=True)
    ]
    row_height = 0.34 if any("\n" in line.label for line in lines) else 0.24

    def draw(figure: Figure) -> None:
        x_label = f"ratio of {brief(content.get('figure', 'errors'), 40)}, 95 %"
        draw_dots(figure, [("", lines)], level=1, band=0, x_label=x_label)
        figure.axes[0].tick_params(axis="y", labelsize=7)
        figure.axes[0].lines[0].set_color(INK)  # a colour that has a dark value in a page

    rows = [
        [r.get("on"), r["model"], r["baseline"], r["mean"], *r["interval95"], verdict]
        for r, verdict in zip(ratios, told, strict=True)
    ]
    study = brief(content["study"], 100)
    few = next((verdict for verdict in told if verdict.startswith("too few")), "")
    title = f"{study}: {told.count('better')} of {len(ratios)} comparisons favour the model, {told.count('worse')}"
    title += f" its baseline{f'; {few}' if few else ''}"
    about = (
        "A mark for each comparison with its 95 % interval; left of 1 the model is better than its baseline. Title "
        "and colours are those of verdicts, which correct for the number of comparisons."
    )
    yield picture(
        "ratios",
        title,
        about,
        0.8 + row_height * len(ratios),
        draw,
        ["on", "model", "baseline", "ratio", "low", "high", "verdict"],
        rows,
    )


def _compared(ratio: Mapping[str, Any]) -> str:
    """The two models compared, on one line if that is short."""
    model = brief(": ".join(filter(None, (ratio.get("on"), ratio["model"]))), 34)
    baseline = brief(ratio["baseline"], 31)
    return f"{model} to {baseline}" if len(model) + len(baseline) < 32 else f"{model}\nto {baseline}"


def of_benchmarks(content: Mapping[str, Any]) -> Iterator[Picture]:
    """Attention as a roofline: the speed reached, and what the machine can reach."""
    rows = [row for row in (content["benchmarks"].get("attention") or {"rows": []})["rows"] if row["seconds"]]
    if not rows:
        return
    speed = next((b["peak_flops"] for b in content["benchmarks"].values() if "peak_flops" in b), None)
    # by variant and T, at growing lengths; the name of a kind begins with T: "T=2, ALiBi"
    points: dict[str, dict[str, list[tuple[float, float]]]] = {}
    for row in rows:
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
    # h and x are read and their gradients written, four matrices and their gradients too, each once
    moved = 4 * (4 * tokens * row["dim"] + 8 * row["dim"] ** 2)
    total = 3 * flops * tokens
    return total / moved, total / median(seconds) / 1e9


# --- language -------------------------------------------------------------------------------------


def of_language(content: Mapping[str, Any]) -> Iterator[Picture]:
    """The losses; final scores and costs are in the table."""
    rates = {
        m["name"]: _smooth(m["training_bits_per_token"]) for m in content["models"] if m["training_bits_per_token"]
    }
    curves = [Curve(name, *zip(*points, strict=True)) for name, points in rates.items() if len(points) > 1]
    if not curves:
        return
    drawn = curves[:_MOST_MODELS]
    best = min(drawn, key=lambda curve: curve.y[-1])
    label, bigram = "training loss, bits per token", content["corpus"]["bits_per_byte"].get("bigram")
    level = ("bigram model", bigram) if bigram else None
    yield stacked(
        "loss-curves",
        f"At the end of this training {brief(best.name, 100)} has the lowest loss",
        "Training loss against the step, averaged over neighbouring steps; the dashed line is the bigram model.",
        [Panel("", "training step", label, drawn, level, x_scale="linear", y_scale="log")],
        ("panel", "model", "step", "bits per token"),
    )


def _smooth(losses: Sequence[float | None]) -> list[tuple[int, float]]:
    """At most 80 means over neighbouring steps, because single batches scatter."""
    sound = [(i + 1, loss) for i, loss in enumerate(losses) if loss is not None]
    width = max(1, len(sound) // 80)
    chunks = [sound[i : i + width] for i in range(0, len(sound), width)]
    return [(chunk[-1][0], fmean(loss for _, loss in chunk)) for chunk in chunks]


DRAWN: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Picture]]] = {
    "recursion": of_recursion,
    "language": of_language,
    "readings": of_readings,
    "benchmarks": of_benchmarks,
}


def pictures_of(content: Mapping[str, Any]) -> list[Picture]:
    """The pictures of a result; none for a kind that has no numbers to draw."""
    return list(DRAWN[content["kind"]](content)) if content["kind"] in DRAWN else []
