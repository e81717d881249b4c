"""The explanations are in step with what they explain."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from cemverify.claims.findings import TOP_TEN
from docs.making.pictures import FOLDER, PICTURES
from reports.pictures.drawing import Picture

DOCS = Path(__file__).parents[2] / "docs"
NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


def test_the_ten_findings_are_those_of_the_ledger_in_its_words() -> None:
    page = (DOCS / "explanation" / "findings.md").read_text()
    sections = re.findall(r"^## \d+\. (.*?)\n(.*?)(?=^## |\Z)", page, flags=re.MULTILINE | re.DOTALL)
    assert [words for words, _ in sections] == [finding.words for finding in TOP_TEN]
    for (_, text), finding in zip(sections, TOP_TEN, strict=True):
        assert f"\n    {finding.code}\n" in text
        assert f"(../claims.md#{finding.claim})" in text


@pytest.mark.parametrize("draw", PICTURES)
def test_a_picture_is_what_its_maker_draws(draw: Callable[[], Picture]) -> None:
    """Up to the last digits, which another processor may round otherwise."""
    drawn = draw()
    stored = (FOLDER / f"{drawn.name}.svg").read_text()
    assert (FOLDER / f"{drawn.name}.csv").read_text() == drawn.csv
    assert NUMBER.sub("", stored) == NUMBER.sub("", drawn.svg), "draw it again: python -m docs.making.pictures"
    numbers = ([float(number) for number in NUMBER.findall(svg)] for svg in (stored, drawn.svg))
    assert all(abs(a - b) < 0.01 for a, b in zip(*numbers, strict=True))


def test_the_steps_of_the_landscape_go_down() -> None:
    rows = [line.split(",") for line in (FOLDER / "energy-landscape.csv").read_text().splitlines()[1:]]
    for layer in {row[0] for row in rows}:
        energies = [float(row[4]) for row in rows if row[0] == layer]
        assert len(energies) == 9
        assert energies == sorted(energies, reverse=True)
