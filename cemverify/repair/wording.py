"""The report of a search for an edit: a verdict in a sentence, the diff, and what to do with it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from textwrap import indent
from typing import Any

from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict, number
from cemverify.repair.edits import Edit
from cemverify.repair.search import Repair, RepairOutcome

_NAMED = 4  # properties that a sentence names
_MOST_EDITS = 3  # edits to show, and other ways to write one of them
_NEAR = 5  # lines to name if no edit helps


def in_words(outcome: RepairOutcome, finished: RunFinished, name: str) -> str:
    """The outcome in words, for a terminal.

    Args:
        finished: the run without an edit. name: the implementation's.
    """
    violated = sum(record.verdict == Verdict.VIOLATED for record in finished.records)
    run = sum(record.verdict != Verdict.NOT_OFFERED for record in finished.records)
    if not violated:
        return f"Nothing to mend: none of {number(run, 'property')} is violated."
    before = f"{violated} of {number(run, 'property')} {'is' if violated == 1 else 'are'} violated"
    before += f"; {len(finished.unasked)} were not asked." if finished.unasked else "."
    if outcome.declare is not None:
        told = outcome.declare[:1].upper() + outcome.declare[1:]
        return f"{told}.\n\n{before} No edit was tried, as the code may be right."
    if outcome.refusal is not None:
        return f"{before} No edit was tried: {outcome.refusal}."
    effort = f"{outcome.tried} edits were tried in {outcome.seconds:.0f} s"
    if outcome.cut_short:
        effort += " until time ran out (--search allows more)"
    effort += " until it was interrupted" if outcome.interrupted else ""
    whole = [repair for repair in outcome.repairs if repair.mends]
    repairs = whole or list(outcome.repairs[:1])
    lines = [f"{before} {_headline(outcome, whole, run)} ({effort})."]
    for repair in repairs[:_MOST_EDITS]:
        shown = f"\n\n{repair.diff}" if repair.mends or _helps(repair, finished) else ""
        lines.append(f"\n{_headed(repair, finished)}{shown}")
    if (more := len(whole) - _MOST_EDITS) > 0:
        do, them = ("does", "it") if more == 1 else ("do", "them")
        lines.append(f"\n{number(more, 'more edit')} {do} so too: --json FILE lists {them}.")
    if len(whole) > 1:
        lines.append("\nThese edits give different answers. Only you know which of them you meant.")
    if not whole:
        lines += [f"\nNot edited: {problem}." for problem in outcome.unseen]
        lines += _best(outcome) or _places(outcome, finished)
    again = shlex.join(["cemverify", "repair", name, *(o for o in finished.options or () if o != "--black-box")])
    if len(whole) == 1:
        lines.append(f"\n`{again} --write` writes it into the file.")
    elif whole:
        lines.append(f"\n`{again} --write 1` writes the first one into the file.")
    return "\n".join(lines)


def _headline(outcome: RepairOutcome, whole: Sequence[Repair], run: int) -> str:
    them = "it hold" if run == 1 else "all of them hold"
    if not whole:
        judged = "No edit has been judged yet"
        return judged if outcome.candidates else "No single edit and no pair that was tried mends this"
    pairs = len(whole[0].edits) > 1
    if len(whole) == 1:
        return f"{'Two edits together make' if pairs else 'One edit makes'} {them}"
    return f"{len(whole)} {'pairs of edits' if pairs else 'edits'} make {them}"


def _effect(repair: Repair, finished: RunFinished) -> tuple[set[str], set[str], set[str]]:
    """Of the properties that were tested without an edit: those that held, were violated, and hold with it."""
    by_id = {record.id: record.verdict for record in finished.records if record.verdict != Verdict.NOT_OFFERED}
    held, wrong = ({id_ for id_, v in by_id.items() if v == verdict} for verdict in (Verdict.HOLDS, Verdict.VIOLATED))
    return held, wrong, {record.id for record in repair.records if record.verdict == Verdict.HOLDS} & by_id.keys()


def _helps(repair: Repair, finished: RunFinished) -> bool:
    """Whether what an edit mends, less what it breaks, is at least half of what was violated."""
    held, wrong, now = _effect(repair, finished)
    return 2 * (len(wrong & now) - len(held - now)) >= len(wrong)


def _headed(repair: Repair, finished: RunFinished) -> str:
    """What holds with an edit."""
    places = " and ".join(f"{os.path.relpath(path)}:{edit.line}" for path, edit in repair.edits)
    if repair.mends:
        all_ = "the property holds" if repair.run == 1 else f"all {repair.run} properties hold"
        return f"{places}: with this edit {all_}.{_alike(repair)}"
    before, _, after = _effect(repair, finished)
    asked = sum(record.verdict != Verdict.NOT_OFFERED for record in finished.records)
    held = f"{len(before)} of {asked} hold without this edit, {len(after)} with it"
    if finished.unasked:
        held += f" (of all {repair.run}, {repair.holding} with it)"
    return f"{places}: {held}; still violated: {_ids(repair.violated)}.{_alike(repair)}"


def _alike(repair: Repair) -> str:
    """The edits that give the same answers, the likeliest first."""
    count = len(repair.alike)
    if not count:
        return ""
    head = " Another way to write it:" if count == 1 else f" {count} other ways to write it:"
    texts = [" and ".join(map(_short, edits)) for edits in repair.alike[:_MOST_EDITS]]
    return f"{head} {'; '.join(texts)}{'; ...' if count > _MOST_EDITS else '.'}"


def _short(edit: tuple[str, Edit]) -> str:
    path, edit_ = edit
    before, after = (" ".join(text.split()) for text in (edit_.before, edit_.after))
    at = f"{os.path.relpath(path)}:{edit_.line}"
    if not before:
        return f"`{after}` is added in {at}"
    return f"`{before}` becomes `{after}` in {at}" if after else f"`{before}` is removed from {at}"


def _ids(records: Sequence[Record]) -> str:
    named = ", ".join(record.id for record in records[:_NAMED])
    more = len(records) - _NAMED
    return f"{named} and {more} more" if more > 0 else named or "none, but not all could be judged"


def _best(outcome: RepairOutcome) -> list[str]:
    """The best edits of a search that did not end, shown as the lines that they change."""
    head = "\nThe best edits until then, by the smallest cases alone, not yet judged by any property:"
    edits = [repair.edit for repair in outcome.candidates]
    told = ((edit.place, indent(edit.before, "-"), indent(edit.after, "+")) for edit in edits)
    return [head, *(f"\n{place}\n{before}\n{after}" for place, before, after in told)] if edits else []


def _places(outcome: RepairOutcome, finished: RunFinished) -> list[str]:
    for repair in outcome.repairs[:1]:
        held, wrong, now = _effect(repair, finished)
        mended, broken = len(wrong & now), len(held - now)
        mends = f"\nThis edit mends {mended} of {len(wrong)} that were violated"
        mends += f" and breaks {broken} that held" if broken else ""
        if not _helps(repair, finished):
            return [f"{mends}: the cause is elsewhere."]
        return [f"{mends}. The rest may have a cause of its own: make this edit, and check again."]
    if not outcome.near:
        unfinished = outcome.cut_short or outcome.interrupted
        return (
            []
            if unfinished
            else [
                "\nNo single edit made the violations smaller, so the mistake is likely to be larger than one edit."
            ]
        )
    return [f"\nEdits of these lines made the violations smaller: {', '.join(outcome.near[:_NEAR])}."]


def as_json(outcome: RepairOutcome, name: str) -> dict[str, Any]:
    """The payload of a result of kind "repair"."""
    return {
        "implementation": name,
        "refusal": outcome.refusal or outcome.declare,
        "tried": outcome.tried,
        "questions": outcome.questions,
        "seconds": round(outcome.seconds, 3),
        "cut_short": outcome.cut_short,
        "interrupted": outcome.interrupted,
        "candidates": [_listed(repair.edits) for repair in outcome.candidates],
        "near": list(outcome.near),
        "repairs": [
            {
                **{name: getattr(repair, name) for name in ("mends", "holding", "run")},
                "violated": [record.id for record in repair.violated],
                "diff": repair.diff,
                "edits": _listed(repair.edits),
                "alike": [_listed(edits) for edits in repair.alike],
            }
            for repair in outcome.repairs
        ],
    }


def _listed(edits: Sequence[tuple[str, Edit]]) -> list[Mapping[str, Any]]:
    return [
        {"file": os.path.relpath(path), **{name: getattr(edit, name) for name in ("line", "kind", "before", "after")}}
        for path, edit in edits
    ]
