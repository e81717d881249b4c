"""What recursion gains on functions of known difficulty: a result of the study in one sentence, and in tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean
from typing import Any

from cemverify.results.envelope import Table
from cemverify.results.numbers import NOTHING, shown_p, shown_ratio, shown_share, shown_verdict
from cemverify.results.statistics import FEWEST, Ratio, compare, correct, mean_interval
from synthetic.figures.sheets import Column, Entry, Group, Quantity, Sheet, plain
from synthetic.studies.engine.stopping import share
from synthetic.studies.recursion.rows import (
    DISTANCE,
    FLOOR,
    Content,
    Family,
    Row,
    along,
    at_depths,
    at_stops,
    by_depth,
    by_points,
    drawn_models,
    errors,
    families,
    far_above,
    is_drawn,
    is_floor,
    is_plain,
    marked,
    named,
    priors,
    shallowest,
    sizes,
)
from synthetic.studies.recursion.worth import sentences

# The numbers of test-time steps, of 1 ... 16, that a table and a picture show beside those that were trained.
_SHOWN_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)
_LAST = _SHOWN_DEPTHS[-1]
_BEST = "the best of the trained models: the paired test calls it better than each of the others (Holm)"
_ON_THE_PAGE = ("model", "rate", "RMSE", "ratio", "p (Holm)", "verdict")
_MOST_TOLD = 4  # ratios of other families in a sentence
_RATIO = "ratio of the RMSE to that of the family's smallest T, of one layer, or of CEM's where a model has no T"


def headline(content: Content) -> str:
    """For each prior, plain CEM against its smallest T: the least mean error, then every significant difference."""
    told_of: list[str] = []
    said = ""
    for prior, rows in named(content).items():
        ratio, _, depths = of_steps(content, rows).partition(": ")
        if depths:
            told_of.append(f"On {prior}{f', {ratio}' * (ratio != said)}: {depths}")
            said = ratio
    if not told_of:
        return "Plain CEM was not compared at several depths"
    return ". ".join(told_of) + "; one learning rate was tried" * _only(content)


def of_steps(content: Content, rows: Sequence[Row]) -> str:
    """The `headline` of a prior; nothing if plain CEM has one depth."""
    deeper = [row for row in families(rows).get(Family.CEM, []) if row["deeper"]]
    least = min(deeper, key=lambda row: row["deeper"]["ratio"]["mean"], default=None)
    told = [row for row in deeper if row is least or verdict(row["deeper"]) in ("better", "worse")]
    parts = [
        f"{shown_ratio(Ratio(**row['deeper']['ratio']), 2)} at T = {row['depth']},"
        f" {verdict(row['deeper'], _noun(content))}"
        for row in told
    ]
    return f"CEM's RMSE divided by that at T = {shallowest(rows)}: {'; '.join(parts)}" if told else ""


def of_rates(content: Content) -> str:
    """One sentence on where the best learning rates lie."""
    trained = [row for row in content["rows"] if row["contender"]]
    if _only(content):
        return "One learning rate was tried."
    edges = [f"{row['name']} ({prior})" for prior, rows in named(content).items() for row in rows if row["at_edge"]]
    if edges:
        return f"At an edge of the learning rates tried: {', '.join(edges)}."
    made = content["made_by"]["configuration"]
    some = f", on {made['tuning']} of the {_functions(content, content['rows'])}" if made.get("tuning") else ""
    return f"Each of the {len(trained)} learning rates was found between two worse ones{some}."


def of_recipe(content: Content) -> str:
    """One sentence on the size of plain CEM, and on how every model is trained."""
    made = content["made_by"]["configuration"]
    small = next((row for row in content["rows"] if row["contender"] and is_plain(row)), None)
    if small is None or "batch" not in made.get("recipe", {}):
        return ""
    spec, recipe = small["contender"]["spec"], made["recipe"]
    size = f"D = {spec['width']}, M = {spec['hidden']} and {small['cost']['parameters']:,} parameters"
    batches = f"batches of {recipe['batch']} {'functions' if made.get('sequence') else 'points'}"
    steps = f"{recipe['steps']} steps of AdamW on {batches}, with a weight decay of {recipe['weight_decay']:g}"
    return f"*{small['name']}* has {size}; every model is trained for {steps} and a cosine schedule."


def of_others(rows: Sequence[Row]) -> Iterator[str]:
    """The largest significant differences of a prior's other families, and what beats all models."""
    models = families(rows)
    decided = [
        max(sure, key=_distance)
        for name, members in models.items()
        if name != Family.CEM
        and (sure := [r for r in members if r["deeper"] and verdict(r["deeper"]) in ("better", "worse")])
    ]
    told = [
        f"*{row['name']}*: {shown_ratio(Ratio(**row['deeper']['ratio']), 2)}"
        for row in sorted(decided, key=_distance, reverse=True)[:_MOST_TOLD]
    ]
    if told:
        yield f"Other models that differ most from T = {shallowest(rows)}: {', '.join(told)}"
    best = min((row for members in models.values() for row in members), key=_mean, default=None)
    if best is None:
        return
    ahead = [_measured(row) for row in rows if row["rmse"] and _mean(row) < _mean(best) and row["contender"] is None]
    yield f"Smallest mean RMSE of the models: {_measured(best)}{'; smaller: ' * bool(ahead)}{', '.join(ahead)}"


def _mean(row: Row) -> float:
    return float(row["rmse"]["mean"])


def _measured(row: Row) -> str:
    return f"*{row['name']}* ({_mean(row):.3f})"


def _distance(row: Row) -> float:
    return abs(math.log(row["deeper"]["ratio"]["mean"]))


def of_trainings(content: Content) -> Iterator[str]:
    """Which differences training may have caused: errors far above the others, and trainings that ended early."""
    trained = [(prior, row) for prior, rows in named(content).items() for row in rows if row["contender"]]
    found = [(prior, row, far) for prior, row in trained if (far := far_above(errors(row)))]
    if found:
        told = [f"{far} of {len(row['runs'])} of *{row['name']}* ({prior})" for prior, row, far in found if far > 1]
        if more := len(found) - len(told):
            others = f"other {len(trained) - len(told)}" if told else f"{len(trained)}"
            told.append(f"one each of {more} of the {others} models")
        yield f"Trainings that ended far above the others of their model: {', '.join(told)}."
    last = content["made_by"]["configuration"].get("recipe", {}).get("steps")
    ends = [run["best_step"] == last for _, row in trained for run in row["runs"]]
    if any(ends):
        yield f"{sum(ends)} of {len(ends)} models still improved when training ended."


def of_drawn(rows: Sequence[Row]) -> str:
    """The best of a prior's models for all T, beside the models for one T; nothing without such a model."""
    drawn = [(name, at) for name, row in drawn_models(rows).items() if (at := at_depths(row))]
    own = [row["rmse"]["mean"] for row in by_depth(rows).values()]
    if not (drawn and own):
        return ""
    name, at = min(drawn, key=lambda pair: min(pair[1].values()))
    T = min(at, key=lambda T: at[T])
    return (
        f"The best of the models for all T (*{name}*) has an error of {at[T]:.3f} with {T} steps and"
        f" {at.get(_LAST, math.inf):.3f} with {_LAST}; the best model for one T has {min(own):.3f}"
    )


def verdict(comparison: Mapping[str, Any], noun: str = "functions") -> str:
    """The verdict of a comparison in a file."""
    return shown_verdict(comparison["conclusion"], comparison["n"], noun)


def _only(content: Content) -> bool:
    return len(content["made_by"]["configuration"]["rates"]) == 1


def _rate(content: Content, row: Row) -> str | None:
    rate, mark = row["learning_rate"], marked(content, row)
    return None if rate is None else f"{rate:g} ({mark})" if mark else f"{rate:g}"


# --- tables ----------------------------------------------------------------------------------------


def sheets(content: Content, _fold: bool = False) -> list[Sheet]:
    """For each prior: errors and costs, models against CEM, the way down, other numbers of steps, stops."""
    made = (_errors, _by_points, _same_depth, _tuning, _ways_down, _test_depths, _stopped)
    studied = priors(content).items()
    return [sheet for prior, rows in studied for make in made if (sheet := make(content, prior, rows)) is not None]


def on_the_page(content: Content) -> list[Table | str]:
    """The tables for the page: fewer columns, and other numbers of steps only for plain CEM and for drawn T."""
    blocks: list[Table | str] = []
    for prior, rows in priors(content).items():
        errors_ = _errors(content, prior, rows)
        kept = [i for i, column in enumerate(errors_.columns) if column.name.startswith(_ON_THE_PAGE)]
        steps = [row for row in rows if row["contender"] is None or is_plain(row) or is_drawn(row)]
        blocks += [plain(errors_.only(kept)), *sentences(content, rows)]
        made = (
            _by_points(content, prior, rows),
            _same_depth(content, prior, rows),
            _test_depths(content, prior, steps),
            _stopped(content, prior, rows),
        )
        blocks += [plain(sheet) for sheet in made if sheet is not None]
    return blocks


def summaries(content: Content) -> list[Sheet]:
    """For each prior its models by T in five columns, which fit a printed page."""
    return [_summary(content, prior, rows) for prior, rows in priors(content).items()]


def _summary(content: Content, prior: str, rows: Sequence[Row]) -> Sheet:
    best, noun = _best(rows), _noun(content)

    def line(row: Row) -> list[Entry]:
        ratio, *_, told = _compared(content, row["deeper"], ())
        return [
            row["contender"]["family"] if row["contender"] else row["name"],
            row["depth"],
            _rate(content, row),
            _figure(row, "rmse", best),
            ratio,
            str(told or NOTHING).partition(f" {noun}")[0],
        ]

    _, trained, floor = groups = _groups(rows, line)
    edges = ", ".join(row["name"] for row in rows if row["at_edge"])
    notes = (
        f"{FLOOR}: of the exact posterior; over functions, no model has a smaller RMSE." if floor.rows else "",
        f"Too few: a verdict needs {FEWEST} {noun}." if any(line[-1] == "too few" for line in trained.rows) else "",
        "One learning rate was tried." if _only(content) else "",
        f"At an edge of the rates tried: {edges}." if edges else "",
        *sentences(content, rows),
    )
    made = content["made_by"]["configuration"]
    return Sheet(
        f"{prior}, {_inputs(content)}, noise {made['noise']:g}, {sizes(content)}, {_functions(content, rows)}",
        (
            Column("model"),
            Column("T", about='T steps, or T layers with weights of their own where the model is "T layers"'),
            Column("rate", spare=True),
            Column(
                "RMSE", text=lambda figure: _mean_error(figure, 3), about=f"RMSE, mean over {noun} [95 % interval]"
            ),
            Column("ratio", text=lambda figure: _mean_error(figure, 2), about=f"{_RATIO}, geometric mean"),
            Column("verdict", about="better or worse where p < 0.05 after Holm's correction over all models"),
        ),
        groups,
        " ".join(filter(None, notes)),
        _BEST,
        name="summary",
    )


def _groups(rows: Sequence[Row], line: Callable[[Row], Sequence[Entry]]) -> list[Group]:
    def kind(row: Row) -> str:
        return "models" if row["contender"] else "floor" if is_floor(row) else "baselines"

    return [Group(k, [line(row) for row in rows if kind(row) == k]) for k in ("baselines", "models", "floor")]


def _noun(content: Content) -> str:
    return "sets of functions" if content["made_by"]["configuration"].get("sequence") else "functions"


def _functions(content: Content, rows: Sequence[Row]) -> str:
    return f"{max((row['rmse']['n'] for row in rows if row['rmse']), default=0)} {_noun(content)}"


def _inputs(content: Content) -> str:
    n = content.get("inputs", 10)
    return f"{n} input{'s' * (n != 1)}"


def _best(rows: Sequence[Row]) -> str | None:
    return winner({row["name"]: values for row in rows if row["contender"] is not None and (values := errors(row))})


def _figure(row: Row, name: str, best: str | None) -> Entry:
    spread = row[name]
    if spread is None:
        return f"diverged {row['diverged']}/{len(row['runs'])}" if name == "rmse" else None
    interval = None if name == "gap_closed" else mean_interval(**spread)
    return Quantity(spread["mean"], spread["std"], interval, name == "rmse" and row["name"] == best)


def _errors(content: Content, prior: str, rows: Sequence[Row]) -> Sheet:
    made = content["made_by"]["configuration"]
    sampling = [task["sampling"] for task in content["tasks"] if task["prior"] == prior]
    tested = any(row["deeper"] is not None and row["deeper"]["holm"] is not None for row in rows)
    best = _best(rows)

    def line(row: Row) -> list[Entry]:
        cost, deeper = row["cost"], row["deeper"]
        return [
            row["name"],
            _rate(content, row),
            *((cost["parameters"], *cost["inference"].values()) if cost else (None, None, None)),
            *(_figure(row, name, best) for name in ("rmse", "observed", "excess", "gap_closed")),
            *_compared(content, deeper, ("holm", "sign_flip") if tested else ()),
        ]

    return Sheet(
        f"{prior}, {_inputs(content)}, noise {made['noise']:g}, {sampling[0]}:"
        f" {sizes(content)}, mean [95 % interval] of n = {_functions(content, rows)}",
        (
            *map(Column, ("model", "rate", "parameters", "matmul FLOPs", "element-wise FLOPs")),
            *(Column(name, text=_mean_error) for name in ("RMSE", "observed RMSE", DISTANCE)),
            Column("gap closed", "%", text=_share),
            *_compared_columns(f"ratio to T = {shallowest(rows)}", ("p (Holm)", "p (sign flips)") if tested else ()),
        ),
        _groups(rows, line),
        " ".join(
            (
                "The last row is the floor: over functions, no model has a smaller root of the mean squared error.",
                *sentences(content, rows),
            )
        ),
        _BEST,
        name="errors",
    )


def _same_depth(content: Content, prior: str, rows: Sequence[Row]) -> Sheet | None:
    """Every model against plain CEM at the same T; None if there is no other model."""
    compared = [[row["name"], *_compared(content, row["same_depth"], ("holm",))] for row in rows if row["same_depth"]]
    columns = (Column("model"), *_compared_columns("ratio to CEM at the same T", ("p (Holm)",)))
    title = f"{prior}: models against CEM at the same T"
    return Sheet(title, columns, [Group("", compared)], name="same-T") if compared else None


def _by_points(content: Content, prior: str, rows: Sequence[Row]) -> Sheet | None:
    """For functions from context: the error after each number of points, and the excess in nats."""
    scores = by_points(content, rows)
    last = max((len(rmse) for rmse, _ in scores.values()), default=0) - 1
    shown = sorted({*(n for n in _SHOWN_DEPTHS if n < last), 0, last})
    lines: list[list[Entry]] = [
        [name, *(Quantity(rmse[n]) for n in shown), Quantity(fmean(nats))] for name, (rmse, nats) in scores.items()
    ]
    columns = [Column(name, text=_error) for name in ("model", *map(str, shown))]
    columns.append(Column("excess in nats", text=lambda figure: f"{figure.value:.3f}"))
    excess = "excess in nats of the next value, (m - mu)^2 / 2v, over all positions"
    title = f"{prior}: RMSE after n points of a function, and {excess}"
    return Sheet(title, columns, [Group("", lines)], name="points") if scores else None


def _tuning(_content: Content, prior: str, rows: Sequence[Row]) -> Sheet | None:
    """The error at each learning rate tried; None if there was one rate, and for an older file."""
    tried = {row["name"]: dict(map(tuple, row.get("tried") or ())) for row in rows}
    rates = sorted({rate for at in tried.values() for rate in at})
    lines: list[list[Entry]] = [
        [
            name,
            *(None if rate not in at else "diverged" if at[rate] is None else Quantity(at[rate]) for rate in rates),
        ]
        for name, at in tried.items()
        if at
    ]
    columns = (Column("model"), *(Column(f"{rate:g}", text=_error) for rate in rates))
    title = f"{prior}: error on points held out at each learning rate, geometric mean over functions"
    return Sheet(title, columns, [Group("", lines)], name="rates") if len(rates) > 1 else None


def _ways_down(_content: Content, prior: str, rows: Sequence[Row]) -> Sheet | None:
    """How the energy and x change along the T steps of the trained models."""
    lines = []
    for row in rows:
        runs = [run for run in row["runs"] if run["energies"] is not None]
        if runs:
            lines.append(
                [
                    row["name"],
                    " → ".join(f"{value:.3g}" for value in along(runs, "energies")),
                    " → ".join(f"{value:.3g}" for value in along(runs, "norms")),
                    " ".join(f"{share:.1%}" for share in along(runs, "falls")),
                    _range([run["smallest_eigenvalue"] for run in runs]),
                    _range([run["step_size"] for run in runs]),
                ]
            )
    columns = (
        *("model", "energy at each step", "|x| at each step", "points that descend", "min eigenvalue of P", "eta"),
    )
    title = f"{prior}: energy, root mean square of x and share of test points that descend, mean over functions"
    return Sheet(title, [Column(name) for name in columns], [Group("", lines)], name="steps") if lines else None


def _test_depths(_content: Content, prior: str, rows: Sequence[Row]) -> Sheet | None:
    """Models trained at one T and evaluated with another, T'."""
    depths = shown_depths(rows)
    lines: list[list[Entry]] = [
        [row["name"], *(Quantity(means[T]) if T in means else "not finite" for T in depths)]
        for row in rows
        if (means := at_depths(row))
    ]
    columns = (Column("model"), *(Column(f"T' = {T}", text=_error) for T in depths))
    title = f"{prior}: expected RMSE of the trained models with T' steps at test time, mean over functions"
    return Sheet(title, columns, [Group("", lines)], name="test-time") if lines else None


def shown_depths(rows: Sequence[Row]) -> list[int]:
    """The numbers of test-time steps T' that tables and pictures show: fixed ones, and each trained T."""
    trained = {row["depth"] for row in rows if row["depth"] and row["depth"] < _SHOWN_DEPTHS[-1]}
    return sorted({*_SHOWN_DEPTHS, *trained})


def _stopped(_content: Content, prior: str, rows: Sequence[Row]) -> Sheet | None:
    """Models whose points stop by energy, compared with taking all steps; None if that was not tried."""
    lines: list[list[Entry]] = []
    shares: list[str] = []
    for row in rows:
        if stops := at_stops(row):
            shares = [f"q = {share(stop.least_fall)}" for stop in stops]
            every = at_depths(row).get(_LAST)
            lines.append(
                [
                    row["name"],
                    "not finite" if every is None else Quantity(every),
                    *(
                        None if stop.figure is None else f"{_error(Quantity(stop.figure))} ({stop.steps:.1f})"
                        for stop in stops
                    ),
                ]
            )
    title = (
        f"{prior}: expected RMSE of the trained models whose points stop by energy after at most {_LAST} steps"
        " (steps taken), means over functions"
    )
    columns = (Column("model"), Column(f"all {_LAST} steps", text=_error), *map(Column, shares))
    return Sheet(title, columns, [Group("", lines)], name="stops") if lines else None


def _compared_columns(ratio: str, p_values: Sequence[str]) -> Iterator[Column]:
    yield Column(ratio, text=lambda figure: _mean_error(figure, 3))
    yield from (Column(name, text=lambda p: shown_p(p.value)) for name in p_values)
    yield Column("detectable", "%", text=_share)
    yield Column("verdict")


def _compared(content: Content, comparison: Mapping[str, Any] | None, p_values: Sequence[str]) -> list[Entry]:
    if comparison is None:
        return [None] * (3 + len(p_values))
    ratio, p = comparison["ratio"], [Quantity(comparison[name]) for name in p_values]
    ends = None if ratio["low"] is None else (ratio["low"], ratio["high"])
    return [
        Quantity(ratio["mean"], interval=ends),
        *p,
        Quantity(comparison["detectable"]),
        verdict(comparison, _noun(content)),
    ]


def _mean_error(figure: Quantity, digits: int = 4) -> str:
    return shown_ratio(Ratio(figure.value or 0.0, *(figure.interval or (None, None))), digits)


def _share(figure: Quantity) -> str:
    return shown_share(figure.value, 1)


def _error(figure: Quantity) -> str:
    value = figure.value or 0.0
    return f"{value:.4f}" if value < 10 else f"{value:.1e}"


def _range(values: Sequence[float | None]) -> str:
    finite = [value for value in values if value is not None]
    if not finite:
        return NOTHING
    low, high = f"{min(finite):.3f}", f"{max(finite):.3f}"
    return low if low == high else f"{low} … {high}"


# --- which model is best ----------------------------------------------------------------------------


def winner(errors: Mapping[str, Sequence[float]]) -> str | None:
    """The model with the least mean error, if it is better than each of the others.

    Each comparison is the usual paired one, over the same replicates, corrected for their number by Holm's method.

    Args:
        errors: by model, one positive error for each replicate, in the same order for all.

    Returns:
        Its name; None if the models tie, if there are fewer than two, or if there is one replicate only.
    """
    if len(errors) < 2 or len({len(values) for values in errors.values()}) != 1:
        return None
    if any(not values or min(values) <= 0 for values in errors.values()):
        return None
    best = min(errors, key=lambda name: fmean(errors[name]))
    comparisons = correct([compare(errors[best], values) for name, values in errors.items() if name != best])
    return best if all(comparison.conclusion == "better" for comparison in comparisons) else None
