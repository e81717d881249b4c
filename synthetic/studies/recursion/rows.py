"""The content of a result of `python -m synthetic recursion`, and what follows from its numbers.

A result has `rows`, one for each predictor on each prior, with `runs`, one for each function; `tasks`, one for each
function; and its configuration. The study's tables, page and pictures, and what `reports` shows, are made from these
alone. A row is identified by its family and its T, a reference by its name; titles are for people only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import Any

from cemverify.console.escaping import brief
from cemverify.results.statistics import FEWEST
from synthetic.studies.engine.stopping import AtStop, means

# As files name them: the reference that is the optimum, and the start of the names of families whose T is drawn.
FLOOR = "exact GP (floor)"
DRAWN = "T drawn"
# Files name it "excess"; it is sqrt(RMSE^2 - floor^2), not a difference.
DISTANCE = "RMS distance to the exact posterior mean"
Content = Mapping[str, Any]
Row = Mapping[str, Any]


def priors(content: Content) -> dict[str, list[Row]]:
    """The rows of a result by their prior, in the order of the file."""
    rows: dict[str, list[Row]] = {}
    for row in content["rows"]:
        rows.setdefault(row["prior"], []).append(row)
    return rows


def kind(prior: str) -> str:
    """The name of a prior without its parameters, such as "warped"; the whole text of a sum or product."""
    name, inner = prior, 1
    while inner:
        name, inner = re.subn(r"\([^()]*\)", "", name)
    return brief(name if re.fullmatch(r"[\w:.-]+", name) else prior, 100)


def named(content: Content) -> dict[str, list[Row]]:
    """The rows by the kind of their prior, or by its full name if several priors are of that kind."""
    studied = priors(content)
    kinds = list(map(kind, studied))
    return {k if kinds.count(k) == 1 else brief(p, 100): studied[p] for p, k in zip(studied, kinds, strict=True)}


def errors(row: Row) -> list[float]:
    """The expected error on each function; empty if a run diverged."""
    scores = [run["score"] for run in row["runs"]]
    return [] if None in scores else [score["expected"] for score in scores]


def marked(content: Content, row: Row) -> str:
    """The mark of a learning rate: "only rate" if just one was given, "edge", or nothing."""
    return "only rate" if len(content["made_by"]["configuration"]["rates"]) == 1 else "edge" * row["at_edge"]


def far_above(errors: Sequence[float]) -> int:
    """How many of a model's errors lie far above the others; 0 if there are fewer than a verdict needs.

    Far means: above the median by more than 10 % and by more than 3 standard deviations of the logarithms. The
    standard deviation is taken as 1.48 times the median absolute deviation.
    """
    if len(errors) < FEWEST:
        return 0
    logs = list(map(math.log, errors))
    away = [value - median(logs) for value in logs]
    edge = max(3 * 1.48 * median(map(abs, away)), math.log(1.1))
    return sum(value > edge for value in away)


class Family(StrEnum):
    """Families that pictures and sentences look up, as result files and stored cells name them."""

    CEM = "CEM"
    SUMMED = "CEM, steps sum to 1"
    NORMED_SUMMED = "CEM, norm inside, steps sum to 1"
    LAYERS = "CEM, T layers"
    REFRESHED = "CEM, refreshed memory"
    REUSED = "MLP reused"
    MLP_LAYERS = "MLP, T layers"


# Families whose T = 1 equals another family's to the last bit, and is not trained again beside it.
SAME_AT_1: Mapping[str, str] = {
    Family.LAYERS: Family.CEM,
    Family.REFRESHED: Family.CEM,
    Family.MLP_LAYERS: Family.REUSED,
}


def families(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The trained models by family, without those that diverged, by depth; T = 1 may be another family's."""
    members_of: dict[str, list[Row]] = {}
    for row in rows:
        if row["contender"] is not None and not row["diverged"]:
            members_of.setdefault(row["contender"]["family"], []).append(row)
    for name in SAME_AT_1.keys() & members_of.keys():
        if all(row["depth"] != 1 for row in members_of[name]):
            members_of[name] += (row for row in members_of.get(SAME_AT_1[name], ()) if row["depth"] == 1)
    return {name: sorted(members, key=lambda row: row["depth"] or 0) for name, members in members_of.items()}


def is_plain(row: Row) -> bool:
    """Whether a row is plain CEM, at any depth."""
    return row["contender"] is not None and row["contender"]["family"] == Family.CEM


def by_depth(rows: Sequence[Row], family: str = Family.CEM) -> dict[int, Row]:
    """Plain CEM, or another family, at every depth at which no run diverged."""
    return {row["depth"]: row for row in families(rows).get(family, ())}


def shallowest(rows: Sequence[Row]) -> int:
    """The smallest T of the study, the denominator of ratios of errors; 1 if there are no ratios.

    Models that have no T of their own, such as an untied MLP, do not count.
    """
    trained = [(row["contender"]["family"], row["depth"]) for row in rows if row["contender"] is not None]
    named = [family for family, _ in trained]
    return min((T for family, T in trained if family == Family.CEM or named.count(family) > 1), default=1)


def best_depth(at: Mapping[int, Row]) -> int:
    """The T with the smallest geometric mean of the expected errors."""
    return min(at, key=lambda T: math.fsum(map(math.log, errors(at[T]))))


def is_floor(row: Row) -> bool:
    """Whether a row is the optimum: no mean squared error over functions is lower."""
    return row["contender"] is None and row["name"] == FLOOR


def floor(rows: Sequence[Row]) -> float | None:
    """The error of the optimum; None if it is not among the rows."""
    return next((row["rmse"]["mean"] for row in rows if is_floor(row) and row["rmse"]), None)


def is_drawn(row: Row) -> bool:
    """Whether a row is one model for all depths, and none of its runs diverged."""
    return row["contender"] is not None and row["contender"]["family"].startswith(DRAWN) and not row["diverged"]


def drawn_models(rows: Sequence[Row]) -> dict[str, Row]:
    """The models for all depths, by family."""
    return {row["contender"]["family"]: row for row in rows if is_drawn(row)}


def at_depths(row: Row) -> dict[int, float]:
    """The mean error over functions with T' = 1 ... 16 steps, where it is finite for all functions."""
    columns = enumerate(zip(*(run.get("at_depth") or () for run in row["runs"]), strict=False), 1)
    return {T: sum(values) / len(values) for T, values in columns if None not in values}


def at_stops(row: Row) -> tuple[AtStop, ...]:
    """Each stop by energy, means over functions; () if none was tried or a run diverged."""
    of_runs = [] if row["diverged"] else [run.get("at_stops") or () for run in row["runs"]]
    return means([[AtStop(**stop) for stop in stops] for stops in of_runs])


def by_points(content: Content, rows: Sequence[Row]) -> dict[str, tuple[list[float], list[float]]]:
    """For functions from context: RMSE after 0, 1, 2, ... points, and the excess in nats, means over their sets."""
    prior = rows[0]["prior"]
    tasks = [task["by_points"] for task in content["tasks"] if task["prior"] == prior and task.get("by_points")]
    found = {}
    for row in rows:
        name = row["name"]
        scores = [run.get("by_points") for run in row["runs"]] if row["contender"] else [task[name] for task in tasks]
        if scores and None not in scores:
            rmse, nats = (along(scores, quantity) for quantity in ("rmse", "nats"))
            found[name] = rmse, nats
    return found


def sizes(content: Content) -> str:
    """The sizes of the training and the test set, in words."""
    made = content["made_by"]["configuration"]
    if J := made.get("sequence"):
        return f"{made['train_points']} training and {made['test_points']} test functions of {J} points"
    return f"{made['train_points']} training and {made['test_points']} test points"


def along(runs: Sequence[Mapping[str, Any]], quantity: str) -> list[float]:
    """Means over runs of a quantity, step by step."""
    return [sum(values) / len(values) for values in zip(*(run[quantity] for run in runs), strict=True)]
