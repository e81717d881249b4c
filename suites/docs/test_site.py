"""What the site shows otherwise than Markdown does elsewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

pytest.importorskip("sphinx.application", reason="sphinx is not installed")
from docutils.utils.math.latex2mathml import tex2mathml

DOCS = Path(__file__).parents[2] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.mark.parametrize("page", [page for page in PAGES if "$" in page.read_text()], ids=lambda page: page.stem)
def test_every_formula_can_be_typeset(page: Path) -> None:
    text = re.sub(r"```.*?```|`[^`\n]*`|^    .*?$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    displayed = re.findall(r"\$\$(.*?)\$\$", text, flags=re.DOTALL)
    inline = re.findall(r"\$([^$]+)\$", re.sub(r"\$\$.*?\$\$", "", text, flags=re.DOTALL))
    for formula in (*displayed, *inline):
        assert "<math" in tex2mathml(formula)
