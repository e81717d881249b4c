"""An implementation's own code for the page: each line with a mark, and with the properties that reached it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cemverify.console.escaping import one_line
from reports.collect import ResultFile, complete

BUDGET = 400_000  # characters of all listings together, to keep a page under 3 MB
_WIDEST = 200
_FEW = 3  # the most ids that are listed; more are counted by family


@dataclass(frozen=True)
class Line:
    """A line of the code."""

    number: int
    text: str
    # "h" reached, "i" reached but a branch from it was never taken, "v" never reached, "n" not a statement, or run at
    # import
    mark: str
    by: str  # in words, what reached it, or what did not happen there


@dataclass(frozen=True)
class Listing:
    """A file of the code."""

    title: str  # the file, its implementation, and how much was reached
    lines: Sequence[Line]
    missed: bool  # whether a line or a branch was never reached


def listings(sources: Sequence[ResultFile]) -> Iterator[Listing]:
    """Every file of code in the results of checks, as long as the page has room."""
    budget = BUDGET
    for source in sources:
        reach = source.content.get("reach")
        if not reach:
            continue
        with complete(source):
            for file in reach["files"]:
                listing = _listing(source.content["implementation"], file, reach["properties"])
                budget -= sum(len(line.text) + len(line.by) + 80 for line in listing.lines)
                if budget < 0:
                    return
                yield listing


def _listing(name: str, file: Mapping[str, Any], ids: Sequence[str]) -> Listing:
    statements, never = set(file["statements"]), set(file["never"])
    branches = {branch["line"]: branch["never_to"] for branch in file["branches"]}
    lines = []
    for number, text in enumerate(file["text"].splitlines(), 1):
        by = [ids[i] for i in file["by"].get(str(number), ())]
        mark = "n" if number not in statements else "v" if number in never else "i" if number in branches else "h"
        note = _reached_by(by, len(ids)) if mark in "hi" else "never reached" if mark == "v" else ""
        if mark == "i":
            to = ("the end of the function" if line < 0 else f"line {line}" for line in branches[number])
            note += f"; never to {', '.join(to)}"
        lines.append(Line(number, one_line(text)[:_WIDEST] if text.strip() else "", mark, one_line(note)))
    reached = len(statements) - len(never)
    path, of = one_line(str(file["path"]))[:120], one_line(str(name))[:80]
    title = f"{path} of {of}: {reached} of {len(statements)} lines reached"
    return Listing(title, lines, bool(never or branches))


def _reached_by(by: Sequence[str], all_: int) -> str:
    """The properties that reached a line, in words."""
    if len(by) == all_ > 1:
        return f"by all {all_} properties"
    if len(by) <= _FEW:
        return f"by {', '.join(by)}"
    families = Counter(id_.partition("/")[0] for id_ in by)
    return f"by {len(by)} properties: {', '.join(f'{family} {count}' for family, count in families.items())}"
