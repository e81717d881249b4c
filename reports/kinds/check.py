"""A verdict on an implementation: `cemverify check --json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True)
class Tally:
    """How the properties of a family fare."""

    entries: Sequence[Mapping[str, Any]]  # those that were asked or are not offered, as the result has them
    unasked: int  # how many are offered and were not asked, as the run ended before

    def count(self, *verdicts: str) -> int:
        """How many have one of these verdicts."""
        return sum(entry["verdict"] in verdicts for entry in self.entries)

    @property
    def holds(self) -> int:
        """How many hold."""
        return self.count("holds")

    @property
    def violated(self) -> int:
        """How many are violated."""
        return self.count("violated")

    @property
    def undecided(self) -> int:
        """How many are inconclusive, or errors of the suite."""
        return self.count("inconclusive", "suite error")

    @property
    def absent(self) -> int:
        """How many are not offered."""
        return self.count("not offered")

    @property
    def run(self) -> int:
        """How many were run."""
        return len(self.entries) - self.absent

    @property
    def verdict(self) -> str:
        """The verdict on the family as a whole: the worst of its properties, of which all must have been asked."""
        if self.violated:
            return "violated"
        if not self.run and not self.unasked:
            return "not offered"
        return "holds" if self.holds == self.run + self.unasked else "inconclusive"


def tallies(content: Mapping[str, Any]) -> dict[str, Tally]:
    """How each family fares, in the order of the file; those of which nothing was asked come last."""
    judged, missing = families(content), Counter(map(family, content.get("unasked", ())))
    return {name: Tally(judged.get(name, ()), missing[name]) for name in dict.fromkeys([*judged, *missing])}


def headline(content: Mapping[str, Any]) -> str:
    """How many of the properties that were run hold, and what became of the others."""
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
    """One row for each property; folded, one for all of a family that hold, and one for all that are not offered."""
    rows: list[Sequence[Entry]] = []
    for name, entries in families(content).items():
        if not fold:
            rows += [_row(entry) for entry in entries]
            continue
        rows += [_row(entry) for entry in entries if entry["verdict"] not in ("holds", "not offered")]
        for verdict in ("holds", "not offered"):
            alike = [entry for entry in entries if entry["verdict"] == verdict]
            rows += [_folded(name, alike)] if len(alike) > 1 else [_row(entry) for entry in alike]
    return [Sheet(f"Properties of {content['implementation']}", _COLUMNS, [Group("", rows)], _LEGEND if fold else "")]


def _row(entry: Mapping[str, Any]) -> list[Entry]:
    run = entry["verdict"] != "not offered"
    return [
        entry["id"],
        entry["verdict"],
        entry["examples"] if run else None,
        Quantity(entry["share_telling"]) if run else None,
        entry["discarded"] if run else None,
        Quantity(entry["margin"]),
        entry.get("part", ""),
        str(entry.get("reason") or "").partition("\n")[0],
    ]


def _folded(name: str, alike: Sequence[Mapping[str, Any]]) -> list[Entry]:
    hold = alike[0]["verdict"] == "holds"
    margins = [entry["margin"] for entry in alike if entry["margin"] is not None]
    shares = [entry["share_telling"] for entry in alike if entry["share_telling"] is not None]
    return [
        f"{name}: {len(alike)} {'hold' if hold else 'not offered'}",
        alike[0]["verdict"],
        sum(entry["examples"] for entry in alike) if hold else None,
        Quantity(min(shares, default=None)) if hold else None,
        sum(entry["discarded"] for entry in alike) if hold else None,
        Quantity(max(margins, default=None)) if hold else None,
        "",
        "",
    ]
