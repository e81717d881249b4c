"""What the site shows otherwise than Markdown does elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sphinx.application", reason="sphinx is not installed")
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml

from docs.making.site import close_folds, with_captions

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if "$" in page.read_text()], ids=lambda page: page.stem)
def test_every_formula_can_be_typeset(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`|^    .*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    displayed = re.findall(r"\$\$(.*?)\$\$", text, flags=re.DOTALL)
    inline = re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))
    for formula in (*displayed, *inline):
        assert "<math" in tex2mathml(formula)


def test_a_block_that_is_a_file_gets_its_name_and_one_with_another_title_stays() -> None:
    file = '```python title="layer.py"\nx = 1\n```\n'
    assert with_captions(file) == "```{code-block} python\n:caption: layer.py\n\nx = 1\n```\n"
    other = '```text title="violation"\nVIOLATED\n```\n'
    assert with_captions(other) == other


def test_a_part_that_begins_closed_ends_behind_the_sections_in_it() -> None:
    first, last = nodes.section(), nodes.section("", nodes.raw("", "</details>\n", format="html"))
    page = nodes.document(None, None, "", nodes.raw("", "<details>\n", format="html"), first, last)
    close_folds(page)
    assert [type(node) for node in page] == [nodes.raw, nodes.section, nodes.section, nodes.raw]
    assert not last.children


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "<details" in page.read_text()], ids=lambda page: page.stem
)
def test_what_begins_closed_is_markdown_on_lines_of_its_own(page: Path) -> None:
    """Or GitHub shows it as HTML."""
    lines = page.read_text().splitlines()
    for i, line in enumerate(lines):
        if "<summary>" in line:
            assert (lines[i - 1], lines[i + 1]) == ("<details>", "")
        if "details>" in line:
            assert line in ("<details>", "</details>")
