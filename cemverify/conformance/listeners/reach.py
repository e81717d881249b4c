"""What was reached of the implementation's own code, for a run's report and each of its files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import listed, violations
from cemverify.conformance.source.reach.summary import FileReach, Reach, ranges
from cemverify.console.escaping import one_line
from cemverify.results.envelope import Table

_IN_FULL = 12  # lines never reached that a report quotes
_NAMES = 3  # functions never called that it names
_NUMBERS = 6  # numbers in its code that it names
_WIDEST = 90  # characters of a quoted line
_TRACED = "what a compiler traces runs once for each trace: a line counts as reached when it was traced"


def as_text(event: RunFinished) -> str:
    """The report's paragraph: how many lines were reached, and the text of the others."""
    reach = event.reach
    if reach is None:
        return ""
    lines = [*(_of_file(file) for file in reach.files), *_texts(reach)]
    if reach.traced and reach.files:
        lines.append(_TRACED)
    if (around := looked_around(reach)) is not None:
        lines.append(around)
    if not violations(event.records):
        lines += _shared(reach)
    return "\n".join([*lines, *(f"code: {problem}" for problem in reach.problems)])


def looked_around(reach: Reach) -> str | None:
    """Around which of its numbers questions were asked, in words; None if there are none."""
    if not (count := len(reach.looked_around)):
        return None
    named = ", ".join(f"{number:.6g}" for number in reach.looked_around[:_NUMBERS])
    more = f" and {count - _NUMBERS} more" if count > _NUMBERS else ""
    return f"tested around {count} number{'s' if count > 1 else ''} in your code: {named}{more}"


def _shared(reach: Reach) -> Iterator[str]:
    """Sentences about what no comparison can judge: the functions that run on both of its sides."""
    for names in dict.fromkeys(function.runs_in for function in reach.shared):
        places = [function.place for function in reach.shared if function.runs_in == names]
        told = [f"`{place.name}` ({place})" for place in places[:_NAMES]]
        told += [f"{len(places) - _NAMES} more (in --json)"] if len(places) > _NAMES else []
        run, them = ("run", "them") if len(places) > 1 else ("runs", "it")
        yield (
            f"{listed(told)} {run} in the {listed(names)} as well as in the update: a mistake in {them} is in "
            "both, and comparing the two cannot show it"
        )


def _of_file(file: FileReach) -> str:
    """How many lines of a file were reached, and which ones were not."""
    never = [f"{a}-{b}" if b > a else str(a) for a, b in ranges(file.never, file.statements)]
    never += [f"the branch at {line}" for line in file.branches]
    rest = f"; never: {', '.join(never)}" if never else ""
    if not file.uncalled:
        return f"{_percent(*file.counts)} of the lines of {file.file.label} were reached{rest}"
    more = f" and {len(file.uncalled) - _NAMES} more" if len(file.uncalled) > _NAMES else ""
    rest += f"; never called: {', '.join(file.uncalled[:_NAMES])}{more}"
    share = "all" if file.counts[0] == file.counts[1] else f"{_percent(*file.counts)} of the"
    return f"{share} lines of {file.file.label} that the calls lead to were reached{rest}"


def _percent(reached: int, all_: int) -> str:
    """Rounded down, so that only all of them are 100 %."""
    return f"{100 * reached // all_} %"


def _texts(reach: Reach) -> Iterator[str]:
    """The lines that were never reached, with their texts."""
    several = len(reach.files) > 1
    missed = [(file, line) for file in reach.files for line in sorted({*file.never, *file.branches})]
    for file, line in missed[:_IN_FULL]:
        where = f"{file.file.label}:{line}" if several else str(line)
        ways = ", ".join("the end" if to < 0 else f"line {to}" for to in file.branches.get(line, ()))
        to = f"  (never to {ways})" if line in file.branches else ""
        yield f"  {where:>5}  {one_line(file.line(line))[:_WIDEST]}{to}"
    if len(missed) > _IN_FULL:
        yield f"  and {len(missed) - _IN_FULL} more (in --json)"


def as_json(reach: Reach) -> dict[str, Any]:
    """The part of a result file: each file's text and, by line, the properties that reach it."""
    reached, statements = reach.counts
    ids = sorted({id_ for file in reach.files for by in file.by.values() for id_ in by})
    number = {id_: i for i, id_ in enumerate(ids)}
    return {
        "statements": statements,
        "reached": reached,
        "percent": None if reach.percent is None else round(reach.percent, 2),
        "looked_around": len(reach.looked_around),
        "traced": reach.traced,
        "shared_code": [
            {"function": of.place.name, "file": of.place.file, "line": of.place.line, "runs_in": list(of.runs_in)}
            for of in reach.shared
        ],
        "problems": list(reach.problems),
        "properties": ids,
        "files": [
            {
                "path": file.file.label,
                "text": file.file.text,
                "statements": sorted(file.statements),
                "at_import": sorted(file.file.lines.imported),
                "never": file.never,
                "never_called": list(file.uncalled),
                "branches": [{"line": line, "never_to": list(to)} for line, to in file.branches.items()],
                "by": {str(line): [number[id_] for id_ in by] for line, by in file.by.items()},
            }
            for file in reach.files
        ],
    }


def table(reach: Reach) -> Table:
    """How much of each file was reached: a table with one row per file."""
    rows = []
    for file in reach.files:
        reached, statements = file.counts
        never = ", ".join(f"{a}-{b}" if b > a else str(a) for a, b in ranges(file.never, file.statements))
        branches = ", ".join(map(str, file.branches))
        rows.append((file.file.label, statements, reached, _percent(reached, statements), never, branches))
    return Table(
        "Reached of its own code",
        ("file", "lines that a call reaches", "reached", "share", "never", "branches not taken at"),
        rows,
    )


def shortfall(reach: Reach | None, least: float) -> str | None:
    """A sentence that says why a run reaches less than what was demanded; None if it does not."""
    percent = None if reach is None else reach.percent
    if reach is not None and percent is not None and percent >= least:
        return None
    if percent is None:
        problems = () if reach is None else reach.problems
        why = "; ".join(problems) or "it has no lines that a call reaches"
        return f"--least-reach {least:g}: nothing is known of its lines: {why}"
    return f"--least-reach {least:g}: only {percent:.1f} % of its lines were reached, so the run is inconclusive"
