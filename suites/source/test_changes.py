"""What was changed since a run, and which properties reach that."""

from __future__ import annotations

import pytest

from cemverify.conformance.source.reach.changes import changed_lines, reaching
from cemverify.conformance.source.reach.summary import FileReach, Reach
from cemverify.conformance.source.reading.code import CodeFile
from cemverify.conformance.source.reading.lines import Lines

TEXT = "a\nb\nc\nd\n"


@pytest.mark.parametrize(
    ("after", "lines"),
    [
        (TEXT, set()),
        ("a\nB\nc\nd\n", {2}),
        ("a\nd\n", {2, 3}),
        ("a\nb\nnew\nc\nd\n", {2, 3}),
        ("new\na\nb\nc\nd\n", {0, 1}),
        ("", {1, 2, 3, 4}),
    ],
)
def test_changed_lines_are_those_of_the_text_before(after: str, lines: set[int]) -> None:
    assert changed_lines(TEXT, after) == lines


def test_properties_that_reach_a_changed_line_are_named_once() -> None:
    file = CodeFile("/mine.py", "mine.py", TEXT, Lines(frozenset({2, 3}), frozenset(), {}, {}))
    reach = Reach([FileReach(file, {2: ("first",), 3: ("first", "second")}, {})], ())
    assert reaching(reach, {"/mine.py": "a\nB\nc\nd\n"}) == ["first"]
    assert reaching(reach, {"/mine.py": "a\nB\nC\nd\n"}) == ["first", "second"]
    assert reaching(reach, {"/mine.py": "A\nb\nc\nd\n"}) == []
    assert reaching(reach, {"/other.py": ""}) == []
