"""Which properties reach the lines of an implementation that changed since a run."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher

from cemverify.conformance.source.reach.summary import Reach
from cemverify.conformance.source.reading.own import source_lines


def changed_lines(before: str, after: str) -> set[int]:
    """The lines of `before`, from 1, that are missing from `after`, and those between which lines were added."""
    old, new = source_lines(before), source_lines(after)
    lines: set[int] = set()
    for operation, first, last, _, _ in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if operation == "insert":
            lines |= {first, first + 1}
        elif operation != "equal":
            lines |= set(range(first + 1, last + 1))
    return lines


def reaching(reach: Reach, texts: Mapping[str, str]) -> list[str]:
    """Ids of the properties that reached lines which have changed since; none if nothing is known.

    Args:
        reach: the run's. texts: what its files contain now, by path.
    """
    ids: dict[str, None] = {}
    for file in reach.files:
        if (now := texts.get(file.file.path)) is not None:
            for line in sorted(changed_lines(file.file.text, now)):
                ids |= dict.fromkeys(file.by.get(line, ()))
    return list(ids)
