"""Pictures of studies: what recursion bought, what the language models did, how fast it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from statistics import fmean, median
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, MaxNLocator, NullLocator
from scipy.interpolate import Akima1DInterpolator

from reports.kinds import language
from reports.kinds.recursion import families, is_floor, priors, short
from reports.pictures.drawing import COLOURS, INK, MARKERS, QUIET, Picture, label_ends, picture, series, shortened

Rows = Sequence[Mapping[str, Any]]
# A prior, a family, and its points: T, mean, half of the interval.
_Line = tuple[str, str, list[tuple[int, float, float]]]
# Families of models in one picture; more than these are in the table.
_MOST_FAMILIES = 5
_MOST_MODELS = 14


def of_recursion(content: Mapping[str, Any]) -> Iterator[Picture]:
    """RMSE and excess against T, more steps at test time, the energy along the steps."""
    studied = priors(content)
    yield from _against_depth(studied, "rmse", "RMSE")
    yield from _against_depth(studied, "excess", "excess over the floor")
    yield from _test_time(studied)
    yield from _energies(studied)


def of_language(content: Mapping[str, Any]) -> Iterator[Picture]:
    """Losses, and bits per byte against what they cost; learning rates, where a study varies them."""
    if "models" in content:
        yield from _losses(content)
        models = [
            (
                m["name"],
                m["parameters"],
                m["flops_per_token"]["training"],
                m["validation_bits_per_byte"],
                m["validation_standard_error"],
            )
            for m in content["models"]
            if m["validation_bits_per_byte"] is not None
        ]
        yield from _costs(models, content["corpus"]["bits_per_byte"].get("bigram"), "standard error over windows")
    elif "rows" in content:
        models = [
            (
                r["variant"]["name"],
                r["records"][0]["parameters"],
                r["records"][0]["training"],
                r["bits"]["mean"],
                r["bits"]["std"],
            )
            for r in content["rows"]
            if r["bits"] is not None
        ]
        yield from _rates(content)
        yield from _costs(models, None, "standard deviation over seeds")


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
    style = series([name for lines in points.values() for name in lines if name != "MHA"])
    style["MHA"] = (INK, ".", ":")
    every = [point for lines in points.values() for pairs in lines.values() for point in pairs]
    heights = [y for _, y in every] + ([speed / 1e9] if speed else [])

    def draw(figure: Figure) -> None:
        rows = -(-len(points) // 2)
        axes = figure.subplots(rows, min(2, len(points)), squeeze=False, sharey=True)
        for axis in axes.flat[len(points) :]:
            axis.remove()
        for axis, (variant, lines) in zip(axes.flat, points.items(), strict=False):
            _roofline(axis, variant, lines, style, speed)
            axis.set_xlim(min(x for x, _ in every) / 1.1, max(x for x, _ in every) * 1.1)
            axis.set_ylim(0, 1.1 * max(heights))
            label_ends(axis, [(*sorted(pairs)[-1], name, style[name][0]) for name, pairs in lines.items()], 0.2)
        if speed:
            axes[0, 0].text(axes[0, 0].get_xlim()[0], speed / 1e9, "square products", va="bottom", fontsize=8)
        for axis in axes[-1]:
            axis.set_xlabel("FLOPs per byte")
        for axis in axes[:, 0]:
            axis.set_ylabel("GFLOP/s")

    top = max(y for _, y in every)
    share = f", {top * 1e9 / speed:.0%} of the speed of a product of square matrices" if speed else ""
    yield picture(
        "roofline",
        f"Attention reaches up to {top:.0f} GFLOP/s{share}",
        "FLOPs that the formula needs in a second against FLOPs for each byte of input, output and weights; a panel "
        "for each variant on one scale, a line for each T, a point for each length, the longest on the right. The "
        "dashed line is what square products reach on this machine.",
        2.1 * -(-len(points) // 2),
        draw,
        ["attention", "T", "FLOPs per byte", "GFLOP/s"],
        [
            [variant, name, x, y]
            for variant, lines in points.items()
            for name, pairs in lines.items()
            for x, y in pairs
        ],
    )


def _reached(row: Mapping[str, Any], flops: float, seconds: Sequence[float]) -> tuple[float, float]:
    """FLOPs for each byte that must move, and GFLOP/s, of the forward and the backward pass."""
    tokens = row["batch"] * row["tokens"]
    # h and x in and their gradients out, and four matrices with theirs, once
    moved = 4 * (4 * tokens * row["dim"] + 8 * row["dim"] ** 2)
    total = 3 * flops * tokens
    return total / moved, total / median(seconds) / 1e9


def _roofline(
    axis: Axes,
    variant: str,
    lines: Mapping[str, Sequence[tuple[float, float]]],
    style: Mapping[str, tuple[str, str, str]],
    speed: float | None,
) -> None:
    for name, pairs in lines.items():
        colour, marker, dash = style[name]
        xs, ys = zip(*sorted(pairs), strict=True)
        axis.plot(xs, ys, dash, marker=marker, color=colour)
    if speed:
        axis.axhline(speed / 1e9, color=QUIET, linewidth=1, linestyle="--")
    axis.set_xscale("log", base=2)
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axis.set_title(variant)


# --- recursion ------------------------------------------------------------------------------------


def _against_depth(studied: Mapping[str, Rows], what: str, label: str) -> Iterator[Picture]:
    lines: list[_Line] = []
    for prior, rows in studied.items():
        chosen = {name: members for name, members in families(rows).items() if len({r["depth"] for r in members}) > 1}
        for name in list(chosen)[:_MOST_FAMILIES]:
            found = [(r["depth"], *_interval(r, what)) for r in chosen[name] if r[what] is not None]
            lines.append((prior, name, found))
    lines = [line for line in lines if line[2]]
    if not lines:
        return
    named = list(dict.fromkeys(prior for prior, _, _ in lines))
    style = series([name for _, name, _ in lines])
    floors = {p: next((r["rmse"]["mean"] for r in studied[p] if is_floor(r) and r["rmse"]), None) for p in named}

    def panel(axis: Axes, prior: str) -> None:
        mine = [(name, points) for p, name, points in lines if p == prior]
        for i, (name, points) in enumerate(mine):
            colour, marker, dash = style[name]
            aside = 2 ** (0.06 * (i - (len(mine) - 1) / 2))
            xs = [T * aside for T, _, _ in points]
            axis.plot(xs, [y for _, y, _ in points], dash, marker=marker, color=colour)
            axis.vlines(xs, [y - e for _, y, e in points], [y + e for _, y, e in points], color=colour, linewidth=1)
        depths = sorted({T for _, points in mine for T, _, _ in points})
        axis.set_xscale("log", base=2)
        axis.xaxis.set_major_locator(FixedLocator(depths))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        ends = [(points[-1][0], points[-1][1], name, style[name][0]) for name, points in mine]
        floor = floors[prior] if what == "rmse" else None
        if floor is not None:
            axis.plot([depths[0], depths[-1]], [floor, floor], "--", color=INK, linewidth=1)
            ends.append((depths[-1], floor, "Bayes floor", INK))
        axis.set_ylim(bottom=0)
        label_ends(axis, ends)

    data: list[list[Any]] = [[prior, name, T, y, y - e, y + e] for prior, name, points in lines for T, y, e in points]
    data += [
        [prior, "Bayes floor", None, *[floor] * 3]
        for prior, floor in floors.items()
        if what == "rmse" and floor is not None
    ]
    yield picture(
        f"{what}-against-T",
        _said(studied, lines, what),
        f"{label[0].upper()}{label[1:]} against the recursion depth T, a panel for each prior on one scale; mean and "
        "95 % interval over functions.",
        0.5 + 2.1 * len(named),
        _panels(named, panel, "recursion depth T", label),
        ["prior", "model", "T", label, "low", "high"],
        data,
    )


def _interval(row: Mapping[str, Any], what: str) -> tuple[float, float]:
    """Mean, and half of its 95 % interval by Student's t."""
    from scipy.stats import t

    spread = row[what]
    if spread["std"] is None or spread["n"] < 2:
        return spread["mean"], 0.0
    return spread["mean"], float(t.ppf(0.975, spread["n"] - 1)) * spread["std"] / spread["n"] ** 0.5


def _said(studied: Mapping[str, Rows], lines: Sequence[_Line], what: str) -> str:
    """Of the first family: what more steps change, as far as the paired test calls it a change; or what is left."""
    family = lines[0][1]
    said = []
    for prior, name, points in lines:
        if name != family:
            continue
        better = [r for r in families(studied[prior])[name] if (r["deeper"] or {}).get("conclusion") == "better"]
        if what == "excess":
            T, least, _ = min(points, key=lambda point: point[1])
            said.append(f"{short(prior)} {least:.2g} at T = {T}")
        elif better:
            best = min(better, key=lambda row: float(row["rmse"]["mean"]))
            said.append(f"{short(prior)} {best['deeper']['ratio']['mean'] - 1:+.0%} at T = {best['depth']}")
        else:
            said.append(f"{short(prior)} no sure gain")
    shown = ", ".join(said[:4]) + (" ..." if len(said) > 4 else "")
    start = "What {} leaves above the floor" if what == "excess" else "What more steps change in the RMSE of {}"
    return f"{start.format(shortened(family, 20))}: {shown}".replace(" -", " −")


def _test_time(studied: Mapping[str, Rows]) -> Iterator[Picture]:
    depths = (1, 2, 3, 4, 6, 8, 12, 16)
    lines: dict[tuple[str, int], list[tuple[int, float]]] = {}
    floors: dict[str, float] = {}
    for prior, rows in studied.items():
        floors[prior] = next((r["rmse"]["mean"] for r in rows if is_floor(r) and r["rmse"]), 0.0)
        for row in families(rows).get("CEM", []):
            values = [run.get("at_depth") or [] for run in row["runs"]]
            points = [
                (T, fmean(run[i] for run in values))
                for i, T in enumerate(depths)
                if all(len(run) > i and run[i] is not None for run in values) and values
            ]
            if points:
                lines[prior, row["depth"]] = points
    if not lines:
        return
    named = list(dict.fromkeys(prior for prior, _ in lines))
    trained = sorted({T for _, T in lines})
    style = {T: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, T in enumerate(trained)}
    optimal = sum(min(points, key=lambda p: p[1])[0] == T for (_, T), points in lines.items())
    # beyond it a line only says that it has left the picture
    top = 8 * max(min(y for _, y in points) for points in lines.values())

    def panel(axis: Axes, prior: str) -> None:
        ends = []
        for T in trained:
            points = [(x, y) for x, y in lines.get((prior, T), []) if y <= top]
            if points:
                colour, marker = style[T]
                axis.plot(*zip(*points, strict=True), marker=marker, color=colour)
                ends.append((*points[-1], f"trained at T = {T}", colour))
        axis.plot([1, 16], [floors[prior]] * 2, "--", color=INK, linewidth=1)
        ends.append((16, floors[prior], "Bayes floor", INK))
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.xaxis.set_major_locator(FixedLocator([1, 2, 4, 8, 16]))
        axis.xaxis.set_minor_locator(NullLocator())
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        _plain(axis, x=False)
        axis.set_xlim(0.9, 17.5)
        label_ends(axis, ends)

    data = [[prior, T, x, y] for (prior, T), points in lines.items() for x, y in points]
    yield picture(
        "test-time-depth",
        f"{optimal} of {len(lines)} models do best with the number of steps they were trained with",
        "RMSE of plain CEM, evaluated with other numbers of steps than it was trained with; a panel for each prior, "
        "on one logarithmic scale.",
        0.5 + 2.1 * len(named),
        _panels(named, panel, "steps at test time", "RMSE"),
        ["prior", "trained at T", "steps", "RMSE"],
        data,
    )


def _energies(studied: Mapping[str, Rows]) -> Iterator[Picture]:
    lines: dict[tuple[str, int], list[float]] = {}
    for prior, rows in studied.items():
        for row in families(rows).get("CEM", []):
            runs = [run["energies"] for run in row["runs"] if run.get("energies")]
            if runs and len({len(run) for run in runs}) == 1:
                lines[prior, row["depth"]] = [fmean(values) for values in zip(*runs, strict=True)]
    if not lines:
        return
    named = list(dict.fromkeys(prior for prior, _ in lines))
    trained = sorted({T for _, T in lines})
    style = {T: (COLOURS[i % len(COLOURS)], MARKERS[i % len(MARKERS)]) for i, T in enumerate(trained)}
    falls = sum(all(b < a for a, b in pairwise(line)) for line in lines.values())

    def panel(axis: Axes, prior: str) -> None:
        ends = []
        for T in trained:
            if line := lines.get((prior, T)):
                colour, marker = style[T]
                axis.plot(range(len(line)), line, marker=marker, color=colour)
                ends.append((len(line) - 1, line[-1], f"T = {T}", colour))
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        label_ends(axis, ends, room=0.18)

    data = [[prior, T, step, energy] for (prior, T), line in lines.items() for step, energy in enumerate(line)]
    yield picture(
        "energy-along-steps",
        f"The mean energy falls at every step in {falls} of {len(lines)} models",
        "Mean energy of test points before the first step and after each; one line for each trained depth, a panel "
        "for each prior on one scale.",
        0.5 + 2.1 * len(named),
        _panels(named, panel, "step", "energy"),
        ["prior", "T", "step", "energy"],
        data,
    )


# --- language -------------------------------------------------------------------------------------


def _losses(content: Mapping[str, Any]) -> Iterator[Picture]:
    curves = {
        m["name"]: _smooth(m["training_bits_per_token"]) for m in content["models"] if m["training_bits_per_token"]
    }
    curves = {name: curve for name, curve in curves.items() if len(curve) > 1}
    if not curves:
        return
    shown = dict(list(curves.items())[:_MOST_MODELS])
    style = series(list(shown))
    best = min(shown, key=lambda name: shown[name][-1][1])
    bigram = content["corpus"]["bits_per_byte"].get("bigram")

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        ends = []
        for name, curve in shown.items():
            colour, _, dash = style[name]
            xs, ys = zip(*curve, strict=True)
            axis.plot(xs, ys, dash, color=colour)
            ends.append((xs[-1], ys[-1], name, colour))
        if bigram:
            axis.plot([1, ends[0][0]], [bigram] * 2, "--", color=INK, linewidth=1)
            ends.append((ends[0][0], bigram, "bigram model", INK))
        axis.set_yscale("log")
        _plain(axis, x=False)
        axis.set_xlabel("training step")
        axis.set_ylabel("training loss, bits per token")
        label_ends(axis, ends)

    rows = [[name, step, bits] for name, curve in shown.items() for step, bits in curve]
    about = "Training loss against the step, averaged over neighbouring steps; the dashed line is the bigram model."
    yield picture(
        "loss-curves",
        f"{shortened(best, 30)} has the lowest training loss at the end",
        about,
        3.2,
        draw,
        ["model", "step", "bits per token"],
        rows,
    )


def _costs(
    models: Sequence[tuple[str, int, float, float, float | None]], bigram: float | None, what: str
) -> Iterator[Picture]:
    if not models:
        return
    shown = sorted(models, key=lambda model: model[3])[:_MOST_MODELS]
    style = series([model[0] for model in models])
    best = shown[0]

    def draw(figure: Figure) -> None:
        left, right = figure.subplots(1, 2, sharey=True)
        for axis, index, label in ((left, 1, "parameters"), (right, 2, "training FLOPs per token")):
            for model in shown:
                colour, marker, _ = style[model[0]]
                x, y, error = model[index], model[3], model[4] or 0.0
                axis.plot([x], [y], marker, color=colour, markersize=6)
                axis.vlines([x], [y - error], [y + error], color=colour, linewidth=1)
            if bigram:
                axis.axhline(bigram, color=INK, linewidth=1, linestyle="--")
            axis.set_xlabel(label)
            axis.xaxis.set_major_formatter(FuncFormatter(_engineering))
            axis.xaxis.set_major_locator(MaxNLocator(4))
            axis.margins(x=0.15)
        left.set_ylabel("validation bits per byte")
        if bigram:
            left.text(left.get_xlim()[0], bigram, " bigram model", va="bottom", fontsize=8)
        label_ends(right, [(m[2], m[3], m[0], style[m[0]][0]) for m in shown], room=0.45)

    rows = [list(model) for model in models]
    about = (
        "Validation bits per byte of each model, left against its parameters, right against its training FLOPs, on "
        f"one scale; bars are the {what}."
    )
    yield picture(
        "bits-per-byte",
        f"{shortened(best[0], 30)} has the fewest bits per byte, {best[3]:.3f}",
        about,
        3.3,
        draw,
        ["model", "parameters", "training FLOPs per token", "bits per byte", what],
        rows,
    )


def _rates(content: Mapping[str, Any]) -> Iterator[Picture]:
    """Bits per byte against the learning rate, with Akima's curve through it and its lowest point."""
    found: dict[str, dict[float, float]] = {}
    for row in content["rows"]:
        name, _, rate = row["variant"]["name"].rpartition(", rate ")
        if name and row["bits"] is not None:
            try:
                found.setdefault(name, {})[float(rate)] = fmean(language.bits(row))
            except ValueError:
                continue
    curves = {name: sorted(points.items()) for name, points in found.items() if len(points) > 2}
    if not curves:
        return
    style = series(list(curves))
    optima = {name: _lowest(points) for name, points in curves.items()}

    def draw(figure: Figure) -> None:
        axis = figure.subplots()
        ends = []
        for name, points in curves.items():
            colour, marker, _ = style[name]
            axis.plot(*zip(*points, strict=True), marker, color=colour)
            xs, ys, (x, y) = optima[name]
            axis.plot(xs, ys, color=colour)
            axis.plot([x], [y], "*", color=colour, markersize=10)
            ends.append((*points[-1], name, colour))
        axis.set_xscale("log")
        axis.set_xlabel("learning rate")
        axis.set_ylabel("validation bits per byte")
        label_ends(axis, ends)

    rows = [[name, rate, bits, optima[name][2][0]] for name, points in curves.items() for rate, bits in points]
    said = ", ".join(f"{shortened(name, 20)} {optima[name][2][0]:.2g}" for name in list(curves)[:4])
    about = (
        "Bits per byte against the learning rate; the line is Akima's curve through the rates that were tried, the "
        "star its lowest point."
    )
    yield picture(
        "learning-rates",
        f"The best learning rates: {said}",
        about,
        3.3,
        draw,
        ["model", "rate", "bits per byte", "optimum"],
        rows,
    )


def _lowest(points: Sequence[tuple[float, float]]) -> tuple[list[float], list[float], tuple[float, float]]:
    import numpy as np

    rates, bits = zip(*points, strict=True)
    curve = Akima1DInterpolator(np.log2(rates), np.asarray(bits, dtype=np.float64))
    xs = np.linspace(np.log2(rates[0]), np.log2(rates[-1]), 401)
    ys = curve(xs)
    at = int(np.argmin(ys))
    return (2**xs).tolist(), ys.tolist(), (float(2 ** xs[at]), float(ys[at]))


def _smooth(losses: Sequence[float | None]) -> list[tuple[int, float]]:
    """At most 80 means over neighbouring steps, as single batches scatter."""
    sound = [(i + 1, loss) for i, loss in enumerate(losses) if loss is not None]
    width = max(1, len(sound) // 80)
    chunks = [sound[i : i + width] for i in range(0, len(sound), width)]
    return [(chunk[-1][0], fmean(loss for _, loss in chunk)) for chunk in chunks]


# --- panels ---------------------------------------------------------------------------------------


def _panels(named: Sequence[str], panel: Callable[[Axes, str], None], x: str, y: str) -> Callable[[Figure], None]:
    """Panels below each other on one scale, each with its name."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots(len(named), 1, sharey=True, squeeze=False)
        for (axis,), name in zip(axes, named, strict=True):
            if len(named) > 1:
                axis.set_title(shortened(short(name), 40))
            panel(axis, name)
            axis.set_ylabel(y)
        axes[-1][0].set_xlabel(x)

    return draw


def _plain(axis: Axes, x: bool = True) -> None:
    for chosen in [axis.yaxis, *([axis.xaxis] if x else [])]:
        if axis.get_yscale() == "log" and chosen is axis.yaxis:
            chosen.set_major_locator(LogLocator(subs=(1, 2, 3, 5)))
        chosen.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        chosen.set_minor_formatter(FuncFormatter(lambda *_: ""))


def _engineering(value: float, _: int | None = None) -> str:
    for factor, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:g}{letter}"
    return f"{value:g}"
