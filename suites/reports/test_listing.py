"""The page shows an implementation's own code: each line with a mark and with the properties that reach it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cemverify.results.envelope import write
from reports.__main__ import main
from reports.collect import ResultFile
from reports.page import listing
from reports.page.listing import Listing, listings
from suites.reports.examples import a_check

TEXT = "def f(x):\n    if x > 5:\n        return '<b>'\n    return x\n"


def a_reach(text: str = TEXT) -> dict[str, Any]:
    return {
        "statements": 3, "reached": 2, "percent": 66.67, "looked_around": 1, "traced": False, "problems": [],
        "properties": ["gradient/a", "gradient/b", "sizes/a", "sizes/b"],
        "files": [{
            "path": "my\u202elayer.py", "text": text, "statements": [2, 3, 4], "at_import": [1], "never": [3],
            "branches": [{"line": 2, "never_to": [3]}], "by": {"2": [0, 1, 2, 3], "4": [0, 1, 2]},
        }],
    }  # fmt: skip


def made(content: Any) -> list[Listing]:
    return list(listings([ResultFile(Path("r.json"), content, "r.json")]))


def test_each_line_has_a_mark_and_says_what_reached_it() -> None:
    (listing,) = made({**a_check(), "reach": a_reach()})
    assert [(line.mark, line.by) for line in listing.lines] == [
        ("n", ""),
        ("i", "by all 4 properties; never to line 3"),
        ("v", "never reached"),
        ("h", "by gradient/a, gradient/b, sizes/a"),
    ]
    assert listing.title == "my\\u202elayer.py of mylayer:mine: 2 of 3 lines reached"
    assert listing.missed


def test_results_without_it_have_none_and_a_full_page_leaves_the_rest_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert made(a_check()) == []
    monkeypatch.setattr(listing, "BUDGET", 300)
    assert made({**a_check(), "reach": a_reach()}) == []


def test_the_page_has_a_section_for_it_in_which_text_stays_text(tmp_path: Path) -> None:
    write(tmp_path / "r.json", {**a_check(), "reach": a_reach()})
    assert main(["page", str(tmp_path / "r.json"), "--output", str(tmp_path / "p.html")]) == 0
    text = (tmp_path / "p.html").read_text()
    assert '<a href="#code">Which code was reached?</a>' in text
    assert "return &#39;&lt;b&gt;&#39;" in text
    assert '<tr class="v">' in text
