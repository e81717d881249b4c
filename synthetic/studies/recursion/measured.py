"""What a recursion study measured, for the claims ledger: ratios of errors between depths of plain CEM."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from typing import Any

from cemverify.results.statistics import MARGIN
from reports.kinds.recursion import at_depths, at_stops, by_depth, errors, is_drawn, priors, short
from synthetic.studies.engine.readings import measured_ratio, payload


def measured(content: Mapping[str, Any]) -> dict[str, Any]:
    """The figures of a study, and at what scale, from its result; see docs/result-files.md."""
    config, studied = content["made_by"]["configuration"], priors(content)
    depths = {prior: by_depth(rows) for prior, rows in studied.items()}
    sizes = [row["cost"]["parameters"] for at in depths.values() for row in at.values()]
    every = [(short(prior), row) for prior, rows in studied.items() for row in rows]
    drawn = [{"on": on, "model": row["name"], "error": at_depths(row)} for on, row in every if is_drawn(row)]
    stopped = [
        {
            "on": on,
            "model": row["name"],
            "stops": [{"least_fall": q, "steps": steps, "figure": error} for q, steps, error in stops],
        }
        for on, row in every
        if (stops := at_stops(row))
    ]
    common = payload(
        # one model for all depths is another question than a model for each
        "recursion-dial" if drawn else "recursion",
        [
            measured_ratio(f"T = {deep}", f"T = {flat}", errors(at[deep]), errors(at[flat]), short(prior))
            for prior, at in depths.items()
            for flat, deep in combinations(sorted(at), 2)
        ],
        parameters=max(sizes, default=0),
        seen=f"{config['train_points']:,} training points",
        replicates=f"{config['seeds']} functions each",
        recipe=f"noise {config['noise']:g}, each depth at its best of {len(config['rates'])} learning rates",
        figure="expected RMSE",
        margin=MARGIN,
    )
    return {**common, **({"at_depths": drawn} if drawn else {}), **({"at_stops": stopped} if stopped else {})}
