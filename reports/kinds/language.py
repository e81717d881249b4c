"""Language models side by side: `python -m synthetic language train`, and `compare`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.sheets import Column, Entry, Group, Quantity, Sheet


def headline(content: Mapping[str, Any]) -> str:
    """The model with the fewest bits per byte, or that there is none."""
    if "models" in content:
        scored = [m for m in content["models"] if m["validation_bits_per_byte"] is not None]
        if not scored:
            return "every language model diverged"
        best = min(scored, key=lambda m: float(m["validation_bits_per_byte"]))
        return (
            f"{best['name']} reaches {best['validation_bits_per_byte']:.3f} bits per byte, the least of {len(scored)}"
        )
    return "losses of two implementations, step by step"


def sheets(content: Mapping[str, Any], _fold: bool) -> list[Sheet]:
    """The models, beside what they are measured against."""
    if "models" not in content:
        return []
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
    sheet = Sheet(
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
    return [sheet]
