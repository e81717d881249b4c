"""Language models: `python -m synthetic language train` and `study`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.sheets import Column, Entry, Group, Quantity, Sheet
from reports.winners import winner


def headline(content: Mapping[str, Any]) -> str:
    """The best model against the best baseline, or whether a study's statements agree."""
    if "models" in content:
        scored = [m for m in content["models"] if m["validation_bits_per_byte"] is not None]
        if not scored:
            return "every language model diverged"
        best = min(scored, key=lambda m: float(m["validation_bits_per_byte"]))
        return (
            f"{best['name']} reaches {best['validation_bits_per_byte']:.3f} bits per byte, the least of {len(scored)}"
        )
    if "rows" in content:
        readings = [statement["reading"] for statement in content["statements"]]
        found = ", ".join(f"{readings.count(reading)} {reading}" for reading in dict.fromkeys(readings))
        return f"study {content['study']['name']}: {found or 'no statement is read'}"
    return "losses of two implementations, step by step"


def bits(row: Mapping[str, Any]) -> list[float]:
    """Of a study's row, the last bits per byte for each seed; empty if a run diverged."""
    return [] if row["diverged"] else [record["bits"][-1] for record in row["records"]]


def sheets(content: Mapping[str, Any], _fold: bool) -> list[Sheet]:
    """The models, beside what they are measured against."""
    if "models" in content:
        return [_trained(content)]
    return [_studied(content)] if "rows" in content else []


def _trained(content: Mapping[str, Any]) -> Sheet:
    unit = content["corpus"]["unit"]
    rows: list[list[Entry]] = []
    for model in content["models"]:
        note = f"diverged at step {model['diverged_at']}" if model["diverged_at"] is not None else ""
        rows.append(
            [
                model["name"],
                model["parameters"],
                Quantity(model["flops_per_token"]["training"] / 1e6),
                Quantity(model["tokens_per_second"]),
                Quantity(model["utilisation"]),
                Quantity(None if model["peak_bytes"] is None else model["peak_bytes"] / 1e6),
                Quantity(model["validation_bits_per_byte"], model["validation_standard_error"], note=note),
            ]
        )
    known = [[name, *[None] * 5, Quantity(value)] for name, value in content["corpus"]["bits_per_byte"].items()]
    floor = content["corpus"].get("floor_bits_per_byte")
    groups = [Group("models", rows), Group("yardsticks", known)]
    if floor is not None:
        groups.append(Group("floor", [["floor", *[None] * 5, Quantity(floor)]]))
    return Sheet(
        f"Language models after the same {unit}s, one seed",
        (
            Column("model"),
            Column("parameters"),
            Column(f"training FLOPs per {unit}", "MFLOP"),
            Column("speed", f"{unit}s/s"),
            Column("utilisation", "%", 2),
            Column("peak memory", "MB"),
            Column("validation bits per byte", digits=4),
        ),
        groups,
        "± is the standard error over validation windows. None is bold: one seed leaves nothing to test in pairs.",
    )


def _studied(content: Mapping[str, Any]) -> Sheet:
    best = winner({row["variant"]["name"]: found for row in content["rows"] if (found := bits(row))})
    rows: list[list[Entry]] = []
    for row in content["rows"]:
        name, tokens = row["variant"]["name"], row["tokens"]
        note = f"{row['diverged']} of {len(row['records'])} runs diverged" if row["diverged"] else ""
        figure = Quantity(None, note=note)
        if row["bits"] is not None:
            figure = Quantity(row["bits"]["mean"], row["bits"]["std"], best=name == best)
        ratio = None
        if tokens is not None:
            ends = tokens["ratio"]
            interval = None if ends["low"] is None else (ends["low"], ends["high"])
            ratio = Quantity(ends["mean"], interval=interval)
        record = row["records"][0]
        rows.append(
            [
                *(name, record["parameters"], Quantity(record["training"] / 1e6), figure, ratio),
                tokens["conclusion"] if tokens else None,
            ]
        )
    return Sheet(
        f"Study {content['study']['name']} ({content['study']['size']}), mean ± standard deviation over seeds",
        (
            Column("model"),
            Column("parameters"),
            Column("training FLOPs per token", "MFLOP"),
            Column("validation bits per byte", digits=4),
            Column("ratio to its baseline, 95 %", digits=4),
            Column("verdict"),
        ),
        [Group("", rows)],
        "Bold is the best model, if the paired test calls it better than each of the others (Holm).",
    )
