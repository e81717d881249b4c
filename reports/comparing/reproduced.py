"""Whether a result that was made again in the same way says the same.

Everything that decides the figures is on record: configuration, seed, versions, commit and kind of machine, and of
an implementation its name and a digest of its source. Where all of that is known and equal, so are the figures. Times
are left out, with whatever depends on them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from reports.comparing.findings import Content, Finding, note, regression

_RECORD = ("configuration", "seed", "versions", "device", "commit")
# What a clock or the state of the machine decides, by name of the key or the column.
_TIMED = re.compile(
    r"second|time|speed|tokens_per|utilisation|MFU|memory|peak|load|duration|latency|/s\b|\bms\b|created|file|path",
    re.IGNORECASE,
)
_NAMES = ("id", "name", "model", "title", "implementation", "entry")
_TOLERANCE = 1e-9
_MOST = 20


def not_reproduced(old: Content, new: Content) -> list[Finding]:
    """The figures that differ though everything on record is equal; none where something on record differs."""
    then, now = old["made_by"], new["made_by"]
    if old["suite_version"] != new["suite_version"] or any(then.get(key) != now.get(key) for key in _RECORD):
        return []
    if then.get("commit") is None or str(then["commit"]).endswith("+changes"):
        return []  # outside of a repository nothing says what ran, and what the changes were is not on record
    if not _one_implementation(old, new):
        return []
    if old["kind"] in ("benchmarks", "gpu"):
        return []  # every figure is a time
    if any(content.get("unasked") for content in (old, new)):
        return []  # a clock decided how much was asked
    skipped = ("made_by", "tables")
    left, right = ({k: v for k, v in content.items() if k not in skipped} for content in (old, new))
    found = list(_differences(left, right, ""))
    if not found:
        found = list(_in_tables(old, new))
    why = "everything on record is the same: configuration, seed, versions, commit, source, machine"
    listed = [regression(place, was, is_, why) for place, was, is_ in found[:_MOST]]
    if len(found) > _MOST:
        listed.append(note("not reproduced", "", "", f"{len(found) - _MOST} more figures differ"))
    return listed


def _one_implementation(old: Content, new: Content) -> bool:
    """Whether both results are of one implementation whose source is known to be the same, if they are of any."""
    if old["kind"] not in ("check", "counterexample"):
        return True
    digest = (old.get("source") or {}).get("digest")
    same = old["implementation"] == new["implementation"]
    return same and digest is not None and digest == (new.get("source") or {}).get("digest")


def _differences(old: Any, new: Any, place: str) -> Iterator[tuple[str, Any, Any]]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys([*old, *new]):
            if not _TIMED.search(str(key)):
                yield from _differences(old.get(key), new.get(key), f"{place}.{key}" if place else str(key))
    elif isinstance(old, list) and isinstance(new, list):
        if len(old) != len(new):
            yield place, f"{len(old)} entries", f"{len(new)} entries"
            return
        for i, (was, is_) in enumerate(zip(old, new, strict=True)):
            yield from _differences(was, is_, f"{place}[{_called(was, i)}]")
    elif not _equal(old, new):
        yield place, old, new


def _in_tables(old: Content, new: Content) -> Iterator[tuple[str, Any, Any]]:
    """Cells of the stored tables, for results whose figures stand nowhere else."""
    for was, is_ in zip(old["tables"], new["tables"], strict=False):
        if was["columns"] != is_["columns"] or len(was["rows"]) != len(is_["rows"]):
            yield f"table {was['title']!r}", f"{len(was['rows'])} rows", f"{len(is_['rows'])} rows"
            continue
        for row, (before, after) in enumerate(zip(was["rows"], is_["rows"], strict=True)):
            for column, a, b in zip(was["columns"], before, after, strict=True):
                if not _TIMED.search(column) and not _equal(a, b):
                    label = before[0] if before else row
                    yield f"table {was['title'][:60]!r}, {label}, {column}", a, b


def _called(entry: Any, number: int) -> str:
    if isinstance(entry, Mapping):
        words = [str(entry[key]) for key in ("prior", *_NAMES) if isinstance(entry.get(key), str)]
        if words:
            return ", ".join(dict.fromkeys(words))
    return str(number)


def _equal(old: Any, new: Any) -> bool:
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (old, new))
    return math.isclose(old, new, rel_tol=_TOLERANCE, abs_tol=1e-300) if numbers else bool(old == new)
