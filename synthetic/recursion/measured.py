"""What a recursion study measured, for the claims ledger: ratios of errors between depths of plain CEM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import combinations
from typing import Any

from cemverify.results.statistics import MARGIN
from synthetic.measured import measured_ratio
from synthetic.recursion.presets import RecursionConfig
from synthetic.recursion.statements import by_depth, short
from synthetic.recursion.summary import Row, is_drawn, mean_at_depths, mean_at_stops


def _at_depths(prior: str, row: Row) -> dict[str, Any]:
    """The mean error of one model with T' = 1 ... 16 steps, where it is finite for all functions."""
    return {"on": short(prior), "model": row.name, "error": {str(T): error for T, error in mean_at_depths(row)}}


def _at_stops(studied: Mapping[str, Sequence[Row]]) -> list[dict[str, Any]]:
    """The mean error of every model whose points stop by energy, and the steps they take."""
    return [
        {"on": short(prior), "model": row.name, "stops": [asdict(stop) for stop in stops]}
        for prior, rows in studied.items()
        for row in rows
        if (stops := mean_at_stops(row))
    ]


def payload(config: RecursionConfig, studied: Mapping[str, Sequence[Row]]) -> dict[str, Any]:
    """The figures of a study, and at what scale; see docs/result-files.md."""
    depths = {prior: by_depth(rows) for prior, rows in studied.items()}
    sizes = [row.cost.parameters for at in depths.values() for row in at.values() if row.cost is not None]
    drawn = [(prior, row) for prior, rows in studied.items() for row in rows if is_drawn(row)]
    return {
        # one model for all depths is another question than a model for each
        "study": "recursion-dial" if drawn else "recursion",
        "parameters": max(sizes, default=0),
        "seen": f"{config.train_points:,} training points",
        "replicates": f"{config.seeds} functions each",
        "recipe": f"noise {config.noise:g}, each depth at its best of {len(config.rates)} learning rates",
        "figure": "expected RMSE",
        "margin": MARGIN,
        "ratios": [
            measured_ratio(f"T = {deep}", f"T = {flat}", at[deep].errors, at[flat].errors, short(prior))
            for prior, at in depths.items()
            for flat, deep in combinations(sorted(at), 2)
        ],
        "best_rates": [],
        **({"at_depths": [_at_depths(prior, row) for prior, row in drawn]} if drawn else {}),
        **({"at_stops": stopped} if (stopped := _at_stops(studied)) else {}),
    }
