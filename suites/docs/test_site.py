"""What the site shows otherwise than Markdown does elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sphinx", reason="sphinx is not installed")
from docutils.utils.math.latex2mathml import tex2mathml

from docs.making.site import FOLDED, with_captions

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


def test_the_pages_that_are_folded_exist() -> None:
    assert all((DOCS.parent / f"{name}.md").is_file() for name in FOLDED)
