"""A verdict on an implementation: `cemverify check --json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from synthetic.figures.sheets import Column, Entry, Group, Quantity, Sheet

_COLUMNS = (
    *map(Column, ("property", "verdict", "examples")),
    Column("telling", "%", 2),
    *map(Column, ("discarded", "margin", "wrong part", "reason")),
)
_LEGEND = (
    "The margin is the largest error over what roundoff explains; above 1 a property is violated. "
    "Of a folded row it is the largest, and the share of telling examples the least."
)


def family(property_id: str) -> str:
    """The family of a property: the first word of its id, "gradient" of "gradient/attention/plain"."""
    return property_id.partition("/")[0]


def families(content: Mapping[str, Any]) -> dict[str, list[Mapping[str, Any]]]:
    """The properties by family, in the order of the file."""
    entries: dict[str, list[Mapping[str, Any]]] = {}
    for entry in content["properties"]:
        entries.setdefault(family(entry["id"]), []).append(entry)
    return entries


def tallies(content: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The results of each family, in the order of the file; families without a tested property come last.

    For each: its `entries`, which were tested or are not offered; how many are `unasked`, because the run ended
    early; how many were `run`, hold, are `violated` or `undecided`; and the `verdict`, the worst of its properties,
    all of which must have been tested.
    """
    judged, missing = families(content), Counter(map(family, content.get("unasked", ())))
    return {name: _tally(judged.get(name, ()), missing[name]) for name in dict.fromkeys([*judged, *missing])}


def _tally(entries: Sequence[Mapping[str, Any]], unasked: int) -> dict[str, Any]:
    counts = Counter(entry["verdict"] for entry in entries)
    holds, violated, run = counts["holds"], counts["violated"], len(entries) - counts["not offered"]
    verdict = "holds" if holds == run + unasked else "inconclusive"
    verdict = "violated" if violated else verdict if run + unasked else "not offered"
    counted = {"holds": holds, "violated": violated, "undecided": counts["inconclusive"] + counts["suite error"]}
    return {"entries": entries, "unasked": unasked, "run": run, "verdict": verdict, **counted}


def headline(content: Mapping[str, Any]) -> str:
    """How many of the properties that were run hold, and the verdicts of the others."""
    counts = content["counts"]
    sentence = f"{content['implementation']}: {counts['holds']} of {counts['run']} properties that were run hold"
    parts = [
        f"{counts[key]} {word}"
        for key, word in (
            ("violated", "violated"),
            ("inconclusive", "inconclusive"),
            ("suite_error", "suite errors"),
            ("not_offered", "not offered"),
            ("not_asked", "not asked"),
        )
        if counts.get(key)
    ]
    return f"{sentence}; {', '.join(parts)}" if parts else sentence


def sheets(content: Mapping[str, Any], fold: bool) -> list[Sheet]:
    """One row for each property; if folded, one for all of a family that hold, and one for all not offered."""
    rows: list[Sequence[Entry]] = []
    for name, entries in families(content).items():
        alone = [entry for entry in entries if not fold or entry["verdict"] not in ("holds", "not offered")]
        rows += [_line(entry["id"], [entry]) for entry in alone]
        for verdict, word in (("holds", "hold"), ("not offered", "not offered")) if fold else ():
            if alike := [entry for entry in entries if entry["verdict"] == verdict]:
                rows.append(_line(f"{name}: {len(alike)} {word}" if alike[1:] else alike[0]["id"], alike))
    return [Sheet(f"Properties of {content['implementation']}", _COLUMNS, [Group("", rows)], _LEGEND if fold else "")]


def _line(name: str, alike: Sequence[Mapping[str, Any]]) -> list[Entry]:
    """A property, or several that have the same verdict."""
    first, run, alone = alike[0], alike[0]["verdict"] != "not offered", len(alike) == 1
    margins = [entry["margin"] for entry in alike if entry["margin"] is not None]
    shares = [entry["share_telling"] for entry in alike if entry["share_telling"] is not None]
    return [
        name,
        first["verdict"],
        sum(entry["examples"] for entry in alike) if run else None,
        Quantity(min(shares, default=None)) if run else None,
        sum(entry["discarded"] for entry in alike) if run else None,
        Quantity(max(margins, default=None)),
        first.get("part", "") if alone else "",
        str(first.get("reason") or "").partition("\n")[0] if alone else "",
    ]
