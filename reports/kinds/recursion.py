"""What recursion buys on functions of known difficulty: `python -m synthetic recursion`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from reports.sheets import Column, Entry, Group, Quantity, Sheet
from reports.winners import winner

_COLUMNS = (
    Column("model"),
    Column("T"),
    Column("parameters"),
    Column("matmul FLOPs"),
    Column("RMSE"),
    Column("excess over the floor"),
    Column("gap closed", "%"),
    Column("ratio to the smallest T, 95 %"),
    Column("verdict"),
)


def priors(content: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The rows by prior."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in content["rows"]:
        found.setdefault(row["prior"], []).append(row)
    return found


def short(prior: str) -> str:
    """The name of a prior without its parameters."""
    return prior.partition("(")[0]


def errors(row: Mapping[str, Any]) -> list[float]:
    """The expected error on each function; empty if a run diverged."""
    scores = [run["score"] for run in row["runs"]]
    return [] if None in scores else [score["expected"] for score in scores]


def families(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Mapping[str, Any]]]:
    """The trained models by family, without those that diverged, by depth."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        if row["contender"] is not None and not row["diverged"]:
            found.setdefault(row["contender"]["family"], []).append(row)
    return {name: sorted(members, key=lambda row: row["depth"] or 0) for name, members in found.items()}


def is_floor(row: Mapping[str, Any]) -> bool:
    """Whether a row is the optimum, below which no mean squared error over functions lies."""
    return "(floor)" in row["name"]


def headline(content: Mapping[str, Any]) -> str:
    """The smallest error against the smallest T, for each prior."""
    said = []
    for prior, rows in priors(content).items():
        deeper = [row for row in families(rows).get("CEM", []) if row["deeper"]]
        if deeper:
            best = min(deeper, key=lambda row: float(row["rmse"]["mean"]))
            ratio = best["deeper"]["ratio"]
            ends = "" if ratio["low"] is None else f" [{ratio['low']:.2f}, {ratio['high']:.2f}]"
            said.append(f"{short(prior)}: T = {best['depth']} has {ratio['mean']:.2f}{ends} times the RMSE of T = 1")
    return "; ".join(said) or "no model was trained at several depths"


def replaces(content: Mapping[str, Any], _number: int, title: str) -> bool:
    """Whether a stored table is the one of a prior's models."""
    return any(title.startswith(f"{prior}, ") for prior in priors(content))


def sheets(content: Mapping[str, Any], _fold: bool) -> list[Sheet]:
    """For each prior the models, the baselines and the floor."""
    return [_sheet(prior, rows) for prior, rows in priors(content).items()]


def _sheet(prior: str, rows: Sequence[Mapping[str, Any]]) -> Sheet:
    trained = [row for row in rows if row["contender"] is not None]
    best = winner({row["name"]: found for row in trained if (found := errors(row))})
    others = [row for row in rows if row["contender"] is None]
    n = max((row["rmse"]["n"] for row in rows if row["rmse"]), default=0)
    return Sheet(
        f"{prior}: expected RMSE, mean ± standard deviation of {n} functions",
        _COLUMNS,
        [
            Group("models", [_row(row, best) for row in trained]),
            Group("baselines", [_row(row, None) for row in others if not is_floor(row)]),
            Group("floor", [_row(row, None) for row in others if is_floor(row)]),
        ],
        "Bold is the best model, if the paired test calls it better than each of the others (Holm); below the lines "
        "are baselines, and the floor: over functions, no model has a smaller root of the mean squared error.",
    )


def _row(row: Mapping[str, Any], best: str | None) -> list[Entry]:
    note = f"{row['diverged']} of {len(row['runs'])} runs diverged, so no mean is given" if row["diverged"] else ""

    def figure(spread: Mapping[str, Any] | None, bold: bool = False) -> Quantity:
        return Quantity(None, note=note) if spread is None else Quantity(spread["mean"], spread["std"], best=bold)

    cost, deeper = row["cost"], row["deeper"]
    ratio = deeper["ratio"] if deeper else None
    ends = None if ratio is None or ratio["low"] is None else (ratio["low"], ratio["high"])
    return [
        row["name"],
        row["depth"],
        cost["parameters"] if cost else None,
        cost["inference"]["matmul"] if cost else None,
        figure(row["rmse"], row["name"] == best),
        figure(row["excess"]),
        figure(row["gap_closed"]),
        Quantity(ratio["mean"], interval=ends) if ratio else None,
        deeper["conclusion"] if deeper else None,
    ]
