"""Mistakes that a program makes, and the page that says what became of them."""

from __future__ import annotations

import ast

import pytest

from suites.repair.mistakes import BASES, ROOT, mistakes
from suites.repair.page import page


@pytest.mark.parametrize("base", BASES)
def test_each_mistake_is_another_program_of_one_token_less_and_one_more(base: str) -> None:
    text = (ROOT / base).read_text()
    drawn = mistakes(base, 5, seed=0)
    assert len({mistake.text for mistake in drawn}) == 5
    assert drawn == mistakes(base, 5, seed=0)
    for mistake in drawn:
        assert ast.dump(ast.parse(mistake.text)) != ast.dump(ast.parse(text))
        changed = [(a, b) for a, b in zip(text.splitlines(), mistake.text.splitlines(), strict=True) if a != b]
        ((line, wrong),) = changed
        assert text.splitlines()[mistake.line - 1] == line
        assert wrong.replace(mistake.after, mistake.before) == line.replace(mistake.after, mistake.before)


def test_the_page_counts_what_was_mended_and_names_what_was_not() -> None:
    base = "examples/mlp_module.py"
    row = {"base": base, "line": 3, "before": "h", "after": "x", "said": "3 of 9 ...", "cpu": 4.0}
    rows = [
        {**row, "mended": 2, "rank": 2},
        {**row, "mended": 1, "rank": None, "rank_of_alike": 1},
        {**row, "mended": 0, "rank": None, "before": "+", "after": "-"},
        {**row, "said": "Nothing to mend: ...", "mended": 0, "rank": None},
    ]
    text = page(rows)
    (line,) = [line for line in text.splitlines() if line.startswith(f"| {base}")]
    assert [cell.strip() for cell in line.strip("|").split("|")][2:8] == ["4", "3", "2", "1", "0", "2"]
    assert f"* `{base}`, line 3: `+` became `-`" in text
