"""The report of a run: its table, with a row per family, and in full what does not hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from textwrap import fill

from cemverify.catalogue import versions
from cemverify.conformance.judging.absences import IGNORED, RIGHT, named
from cemverify.conformance.judging.diagnosis import diagnose
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, asked_up_to, counts, number, violation, violations
from cemverify.conformance.listeners import reach
from cemverify.conformance.listeners.diagnosis import report as conclusion
from cemverify.console.streams import READABLE, wrapped
from cemverify.results.envelope import Table
from cemverify.results.tables import grid, narrowed

_FEW = 4  # how many features are named
_UNFOLDED = 12  # how many properties make a list too long
_ORDER = ("hold", "violated", "inconclusive", "suite error")  # of a family's verdicts, and in a report's last line
_COLUMNS = ("property", "verdict", "examples", "telling", "discarded", "margin")


def verdict_table(event: RunFinished) -> Table:
    """The verdicts as a table, one row for each property."""
    rows = [(*_row(r), r.part or "", next(iter((r.reason or "").splitlines()), "")) for r in event.records]
    return Table(f"Properties of {event.implementation}", (*_COLUMNS, "wrong part", "reason"), rows)


def report(event: RunFinished, *, verbose: bool = False, width: int | None = None) -> str:
    """The table of what was tested, what could not be judged, the counts, and last the diagnosis.

    If something is violated, lines with counts per family replace the table, so that the report fits a screen.

    Args:
        verbose: a row for every property, each violation in full, and the features missing for those not offered.
        width: columns of the terminal; None if lines may have any length.
    """
    tested = [r for r in event.records if r.verdict != Verdict.NOT_OFFERED]
    if not tested:
        return findings(event, verbose=verbose, width=width)
    if violations(tested) and not verbose:
        text = wrapped(_counted(tested), width)
    else:
        rows = list(map(_row, tested)) if verbose or len(tested) <= _UNFOLDED else _folded(tested)
        table = Table("", _COLUMNS, rows)
        # if the table is too wide, the least important columns are left off first; what remains may be wrapped
        for left_off in ("discarded", "telling", "examples"):
            if width is None or max(map(len, grid(table, "terminal").splitlines())) <= width:
                break
            kept = [i for i, name in enumerate(table.columns) if name != left_off]
            table = Table("", [table.columns[i] for i in kept], [[row[i] for i in kept] for row in table.rows])
        text = grid(table if width is None else narrowed(table, width), "terminal")
    return "\n\n".join([text, *filter(None, [findings(event, verbose=verbose, width=width)])])


def _folded(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """A row for each family, and below it one for each of its properties that does not hold."""
    rows = []
    for family in _families(records):
        rows.append(_of_family(family))
        rows += [(f"  {row[0]}", *row[1:]) for row in map(_row, (r for r in family if r.verdict != Verdict.HOLDS))]
    return rows


def _counted(records: Sequence[Record]) -> str:
    """How many of each family are violated or undecided, and which families hold entirely."""
    lines = []
    undecided = [r for r in records if r.verdict in (Verdict.INCONCLUSIVE, Verdict.SUITE_ERROR)]
    for word, counted in (("violated", violations(records)), ("not decided", undecided)):
        listed = [(family[0].family, sum(r in counted for r in family), len(family)) for family in _families(records)]
        if counts := ", ".join(f"{name} {n} of {of}" for name, n, of in listed if n):
            lines.append(f"{word}: {counts}")
    green = [family for family in _families(records) if all(r.verdict == Verdict.HOLDS for r in family)]
    if green:
        lines.append(f"all hold: {', '.join(f'{family[0].family} ({len(family)})' for family in green)}")
    return "\n".join(lines)


def _families(records: Sequence[Record]) -> list[list[Record]]:
    """The records of each family, in the order of each family's first record."""
    families: dict[str, list[Record]] = {}
    for record in records:
        families.setdefault(record.family, []).append(record)
    return list(families.values())


def _of_family(records: Sequence[Record]) -> tuple[str, ...]:
    """A family's verdicts, the sums of its counts, and its largest margin."""
    words = ("hold" if r.verdict == Verdict.HOLDS else _verdict(r) for r in records)
    tally = Counter(
        sorted(words, key=lambda word: next(i for i, begins in enumerate(_ORDER) if word.startswith(begins)))
    )
    every = "all " if list(tally) == ["hold"] and len(records) > 1 else ""
    verdicts = ", ".join(f"{every}{count} {verdict}" for verdict, count in tally.items())
    if tally == {"hold": 1}:
        verdicts = str(Verdict.HOLDS)
    examples, telling = sum(r.examples for r in records), sum(r.telling for r in records)
    share = f"{100 * telling / examples:.0f} %" if examples else ""
    margin = max((r.margin for r in records if r.margin is not None), default=None)
    discarded = sum(r.discarded for r in records)
    largest = "" if margin is None else f"{margin:.3g}"
    return records[0].family, verdicts, str(examples), share, str(discarded), largest


def _row(r: Record) -> tuple[str, ...]:
    was_asked = r.verdict != Verdict.NOT_OFFERED
    examples, discarded = (str(count) if was_asked else "" for count in (r.examples, r.discarded))
    telling = "" if r.share is None else f"{100 * r.share:.0f} %"
    return r.id, _verdict(r), examples, telling, discarded, "" if r.margin is None else f"{r.margin:.3g}"


def findings(event: RunFinished, *, verbose: bool = False, width: int | None = None) -> str:
    """The report without the table; arguments as in `report`."""
    tested = [r for r in event.records if r.verdict != Verdict.NOT_OFFERED]
    diagnosis = diagnose(event)
    parts = [violation(record) for record in violations(tested)] if verbose else []
    undecided: dict[tuple[Verdict, str | None], list[str]] = {}  # ids by verdict and reason
    for r in tested:
        if r.verdict in (Verdict.INCONCLUSIVE, Verdict.SUITE_ERROR) and not r.not_enforced:
            undecided.setdefault((r.verdict, r.reason), []).append(r.id)
    parts += [f"{word.upper()} {', '.join(ids)}\n  {reason}" for (word, reason), ids in undecided.items()]
    parts += [f"NOT ENFORCED {r.id}\n  {r.verdict}, but {too_new(r)}\n  {r.reason}" for r in tested if r.not_enforced]
    # result files have each one's reason
    absent = [(r.reason or "").partition(": ") for r in event.records if r.verdict == Verdict.NOT_OFFERED]
    if not tested and event.unasked:
        advice = "" if event.interrupted else "; give --within more seconds, or try again when the machine is free"
        parts.append(f"nothing was asked: the run ended before its first verdict{advice}")
    elif not tested and absent:
        whose = ", which not_offered lists" if all(why == "declared" for _, _, why in absent) else ""
        names = ", ".join(dict.fromkeys(name if whose else f"{name} ({why})" for name, _, why in absent))
        parts.append(f"nothing was asked: {'it needs' if len(absent) == 1 else 'they need'} {names}{whose}")
    elif verbose or diagnosis is None:
        first = Counter(name for name, _, why in absent if verbose or why == "declared")
        listed = _listed([f"{name} ({count})" for name, count in first.most_common()], verbose=verbose)
        text = f"not offered, for lack of these features: {listed}"
        if first:
            parts.append(fill(text, READABLE, subsequent_indent="  ") if width is None else text)
        told = [absences(event, verbose=verbose), reach.as_text(event), how_far(event), worth(event)]
        parts += filter(None, told)
    parts.append(summary(event))
    if diagnosis is not None:
        parts.append(conclusion(diagnosis))
    return wrapped("\n\n".join(parts), width)


def holding(records: Sequence[Record]) -> str:
    """How many of those that were tested hold."""
    c = counts(records)
    return f"{c['holds']} of {c['run']} hold"


def too_new(record: Record) -> str:
    """Why a record is not enforced."""
    since = versions.introduced().get(record.id)
    return f"the property came with catalogue {since}, and this run is pinned to {record.newer_than}"


def how_far(event: RunFinished) -> str:
    """Up to which sizes the properties that hold were tested; beyond them nothing is known. Empty if none."""
    sizes = asked_up_to(event.records)
    listed = ", ".join(f"{letter} = {size}" for letter, size in sizes.items())
    return f"tested up to {listed}" if listed else ""


def worth(event: RunFinished) -> str:
    """What a run is worth that found nothing, but did not test everything; empty for any other."""
    if event.worth is None or violations(event.records):
        return ""
    tested, known = sum(record.verdict != Verdict.NOT_OFFERED for record in event.records), event.worth
    return (
        f"not everything was asked: these {tested} of {tested + len(event.unasked)} properties catch at least "
        f"{known.killed} of the {known.of} known faults that such a layer can have ({known.percent:.0f} %)"
    )


def _listed(names: Sequence[str], *, verbose: bool) -> str:
    """These names, or the first few and how many more there are."""
    if verbose or len(names) <= _FEW + 1:
        return ", ".join(names)
    return f"{', '.join(names[:_FEW])} and {len(names) - _FEW} more (-v lists them)"


def absences(event: RunFinished, *, verbose: bool = True) -> str:
    """Features that are declared absent, but work, or whose use is not refused; empty if there are none.

    Args:
        verbose: names them all.
    """
    told = {
        RIGHT: "answers correctly (drop it from not_offered, or declare it)",
        IGNORED: "accepted and ignored, or answered wrongly",
    }
    found = [(words, event.absences[outcome]) for outcome, words in told.items() if outcome in event.absences]
    return "\n".join(f"declared absent, but {words}: {_listed(named(fs), verbose=verbose)}" for words, fs in found)


def summary(event: RunFinished) -> str:
    """How many properties there are, how many were tested, and their verdicts, in one line."""
    c = counts(event.records, len(event.unasked))
    unasked = f", {c['not_asked']} not asked, as the run ended early" if event.unasked else ""
    examples = sum(r.examples for r in event.records)
    accepted = f" ({c['known']} known)" if c["known"] else ""
    too_new = f" ({c['not_enforced']} of these not enforced)" if c["not_enforced"] else ""
    discarded = sum(r.discarded for r in event.records)
    return (
        f"{event.implementation}: {number(c['applicable'], 'property')}, {c['run']} run: {c['holds']} hold, "
        f"{c['violated']} violated{accepted}, {c['inconclusive']} inconclusive, "
        f"{number(c['suite_error'], 'suite error')}{too_new}; {c['not_offered']} not offered{unasked}. "
        f"{number(examples, 'valid example')}, {discarded} discarded, {event.seconds:.1f} s."
    )


def _verdict(record: Record) -> str:
    excuse = ", known" if record.known is not None else ", not enforced" if record.not_enforced else ""
    return f"{record.verdict}{excuse}"
