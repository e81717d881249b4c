"""Which properties reach what was changed of an implementation's code since a run."""

from __future__ import annotations

from collections.abc import Mapping
from difflib import SequenceMatcher

from cemverify.conformance.source.reach.summary import Reach
from cemverify.conformance.source.reading.own import source_lines


def changed_lines(before: str, after: str) -> set[int]:
    """The lines of the text before, from 1, that are not there after, and those between which lines were added."""
    old, new = source_lines(before), source_lines(after)
    lines: set[int] = set()
    for operation, first, last, _, _ in SequenceMatcher(None, old, new, autojunk=False).get_opcodes():
        if operation == "insert":
            lines |= {first, first + 1}
        elif operation != "equal":
            lines |= set(range(first + 1, last + 1))
    return lines


def reaching(reach: Reach, texts: Mapping[str, str]) -> list[str]:
    """Ids of the properties that reached lines which have changed since; none if that is not known.

    Args:
        reach: of a run. texts: what stands in its files now, by path.
    """
    ids: dict[str, None] = {}
    for file in reach.files:
        if (now := texts.get(file.file.path)) is not None:
            for line in sorted(changed_lines(file.file.text, now)):
                ids |= dict.fromkeys(file.by.get(line, ()))
    return list(ids)
