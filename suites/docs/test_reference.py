"""The reference names everything, the first page leads to every page, and formulas and pictures are complete."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

import cemverify
from docs.making.parsers import PROGRAMS, parsers
from docs.making.pictures import FOLDER, PICTURES
from docs.making.schema import kinds
from suites.kit.source import ROOT
from synthetic.figures.drawing import Picture

DOCS = ROOT / "docs"


def test_every_public_name_and_module_is_on_its_page_and_every_page_in_the_contents() -> None:
    page = (DOCS / "reference" / "python.md").read_text()
    assert sorted(re.findall(r":: cemverify\.(\w+)$", page, flags=re.MULTILINE)) == sorted(cemverify.__all__)
    page = (DOCS / "reference" / "cem.md").read_text()
    modules = {f"cemverify.cem.{path.stem}" for path in (ROOT / "cemverify" / "cem").glob("[!_]*.py")}
    unpublished = {"cemverify.cem.torch_internals"}  # it wraps torch interfaces that torch does not promise
    assert set(re.findall(r"automodule:: (\S+)", page)) == modules - unpublished | {"cemverify.cem.energies"}
    linked = set(re.findall(r"^\* \[[^\]]+\]\(([^)#]+)\)", (DOCS / "index.md").read_text(), flags=re.MULTILINE))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")} - {"index.md"}
    assert {page for page in linked if not page.startswith("../")} == pages


@pytest.mark.parametrize("program", PROGRAMS)
def test_every_command_has_a_parser_with_arguments_and_words(program: str) -> None:
    by_words = parsers(program)
    assert len(by_words) > 1
    for words, parser in by_words.items():
        assert parser.description, words
        assert words == program or words == "cemverify demo" or len(parser._actions) > 1, words


def test_the_schema_page_has_every_kind_with_its_keys() -> None:
    by_kind = kinds()
    assert {"check", "claims", "power", "counterexample", "readings", "list"} <= set(by_kind)
    (verdict,) = (row for row in by_kind["check"] if row.key == "properties[].verdict")
    assert verdict.required
    assert '"violated"' in verdict.value


WITH_FORMULAS = [page for page in sorted(DOCS.rglob("*.md")) if "$" in page.read_text()]


@pytest.mark.parametrize("page", WITH_FORMULAS, ids=lambda page: page.stem)
def test_every_formula_can_be_typeset(page: Path) -> None:
    mathml = pytest.importorskip("docutils.utils.math.latex2mathml", reason="sphinx is not installed")
    text = re.sub(r"```.*?```|`[^`\n]*`|^    .*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    displayed = re.findall(r"\$\$(.*?)\$\$", text, flags=re.DOTALL)
    inline = re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))
    for formula in (*displayed, *inline):
        assert "<math" in mathml.tex2mathml(formula)


NUMBER = re.compile(r"-?\d+(?:\.\d+)?(?:e-?\d+)?")


@pytest.mark.parametrize("draw", PICTURES)
def test_a_picture_is_what_its_maker_draws(draw: Callable[[], Picture]) -> None:
    """Except for the last digits, which another processor may round differently."""
    drawn = draw()
    stored = (FOLDER / f"{drawn.name}.svg").read_text()
    assert (FOLDER / f"{drawn.name}.csv").read_text() == drawn.csv
    assert NUMBER.sub("", stored) == NUMBER.sub("", drawn.svg), "draw it again: python -m docs.making.pictures"
    numbers = ([float(number) for number in NUMBER.findall(svg)] for svg in (stored, drawn.svg))
    assert all(abs(a - b) < 0.01 for a, b in zip(*numbers, strict=True))
