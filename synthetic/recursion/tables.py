"""The tables of the recursion study, for people; every figure in them is in the result file as a number too."""

from __future__ import annotations

from collections.abc import Sequence

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_p, shown_ratio, shown_share, shown_spread
from synthetic import stopping
from synthetic.gp.tasks import TaskConfig
from synthetic.recursion.cells import TEST_DEPTHS, RunRecord
from synthetic.recursion.summary import Row, mean_at_stops

# T' that the table of depths at test time shows; the result file has all of them.
_SHOWN_DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16)


def errors(task: TaskConfig, sampling: str, rows: Sequence[Row]) -> Table:
    """Errors, costs, and what more depth does."""
    n = rows[0].rmse.n if rows[0].rmse is not None else 0
    tested = any(row.deeper is not None and row.deeper.holm is not None for row in rows)
    columns = ["model", "rate", "parameters", "matmul FLOPs", "element-wise FLOPs"]
    columns += ["RMSE", "observed RMSE", "excess", "gap closed", "ratio to T = 1"]
    columns += ["p (Holm)", "p (sign flips)"] if tested else []
    columns += ["detectable", "verdict"]
    title = (
        f"{task.prior}, {task.dimensions} inputs, noise {task.noise:g}, {sampling}: {task.train_points} training and "
        f"{task.test_points} test points, mean ± std of n = {n} functions"
    )
    return Table(title, columns, [_error_cells(row, tested) for row in rows])


def same_depth(task: TaskConfig, rows: Sequence[Row]) -> Table | None:
    """Every model against plain CEM at the same T; None if nothing else took part."""
    compared = [row for row in rows if row.same_depth is not None]
    cells: list[list[Cell]] = [
        [row.name, shown_ratio(c, 3), shown_p(c.holm), shown_share(c.detectable, 1), c.conclusion]
        for row in compared
        if (c := row.same_depth) is not None
    ]
    columns = ("model", "ratio to CEM at the same T", "p (Holm)", "detectable", "verdict")
    return Table(f"{task.prior}: models against CEM at the same T", columns, cells) if cells else None


def ways_down(task: TaskConfig, rows: Sequence[Row]) -> Table | None:
    """What the energy and x do along the T steps of the trained models."""
    cells: list[list[Cell]] = []
    for row in rows:
        runs = [run for run in row.runs if run.energies is not None]
        if not runs:
            continue
        cells.append(
            [
                row.name,
                " → ".join(f"{value:.3g}" for value in _mean_steps([run.energies for run in runs])),
                " → ".join(f"{value:.3g}" for value in _mean_steps([run.norms for run in runs])),
                " ".join(f"{share:.1%}" for share in _mean_steps([run.falls for run in runs])),
                _range([run.smallest_eigenvalue for run in runs]),
                _range([run.step_size for run in runs]),
            ]
        )
    columns = (
        "model",
        "energy at each step",
        "|x| at each step",
        "points that descend",
        "min eigenvalue of P",
        "eta",
    )
    title = f"{task.prior}: energy, root mean square of x and share of test points that descend, mean over functions"
    return Table(title, columns, cells) if cells else None


def test_depths(task: TaskConfig, rows: Sequence[Row]) -> Table | None:
    """Models trained at one T and evaluated with another, T'."""
    cells: list[list[Cell]] = [
        [row.name, *(_at_depth(row.runs, T) for T in _SHOWN_DEPTHS)] for row in rows if row.runs and not row.diverged
    ]
    title = f"{task.prior}: expected RMSE of the trained models with T' steps at test time, mean over functions"
    return Table(title, ("model", *(f"T' = {T}" for T in _SHOWN_DEPTHS)), cells) if cells else None


def stopped(task: TaskConfig, rows: Sequence[Row]) -> Table | None:
    """Models whose points stop by energy, beside all steps; None if that was not asked."""
    cells: list[list[Cell]] = [
        [
            row.name,
            _at_depth(row.runs, TEST_DEPTHS[-1]),
            *(NOTHING if s.figure is None else f"{_error(s.figure)} ({s.steps:.1f})" for s in stops),
        ]
        for row in rows
        if (stops := mean_at_stops(row))
    ]
    title = (
        f"{task.prior}: expected RMSE of the trained models whose points stop by energy after at most"
        f" {TEST_DEPTHS[-1]} steps (steps taken), means over functions"
    )
    columns = ("model", f"all {TEST_DEPTHS[-1]} steps", *(f"q = {stopping.share(q)}" for q in stopping.STOPS))
    return Table(title, columns, cells) if cells else None


def _error(value: float) -> str:
    return f"{value:.4f}" if value < 10 else f"{value:.1e}"


def _error_cells(row: Row, tested: bool) -> list[Cell]:
    cells: list[Cell] = [row.name, NOTHING, NOTHING, NOTHING, NOTHING]
    if row.cost is not None and row.learning_rate is not None:
        edge = " (edge)" if row.at_edge else ""
        cost = row.cost
        cells[1:] = [
            f"{row.learning_rate:g}{edge}",
            f"{cost.parameters:,}",
            f"{cost.inference.matmul:,}",
            f"{cost.inference.elementwise:,}",
        ]
    width = 9 if tested else 7
    if row.rmse is None or row.observed is None or row.excess is None or row.gap_closed is None:
        return [*cells, f"diverged {row.diverged}/{len(row.runs)}", *[NOTHING] * (width - 1)]
    cells += [
        shown_spread(row.rmse),
        shown_spread(row.observed),
        shown_spread(row.excess),
        f"{row.gap_closed.mean:.1%}",
    ]
    c = row.deeper
    if c is None:
        return [*cells, *[NOTHING] * (width - 4)]
    return [
        *cells,
        shown_ratio(c, 3),
        *([shown_p(c.holm), shown_p(c.sign_flip)] if tested else []),
        shown_share(c.detectable, 1),
        c.conclusion,
    ]


def _at_depth(runs: Sequence[RunRecord], depth: int) -> str:
    values = [run.at_depth[TEST_DEPTHS.index(depth)] for run in runs]
    finite = [value for value in values if value is not None]
    if len(finite) < len(values):
        return "not finite"
    mean = sum(finite) / len(finite)
    return _error(mean)


def _mean_steps(ways: Sequence[tuple[float, ...] | None]) -> list[float]:
    known = [way for way in ways if way is not None]
    return [sum(values) / len(values) for values in zip(*known, strict=True)]


def _range(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return NOTHING
    low, high = f"{min(known):.3f}", f"{max(known):.3f}"
    return low if low == high else f"{low} … {high}"
