"""The page: the answer comes first, nothing is loaded, text stays text, and readers of all kinds find their way."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cemverify.results.envelope import write
from reports.__main__ import main
from reports.collect import ResultFile
from reports.page import listing
from reports.page.listing import Listing, listings
from suites.kit.colours import contrast
from suites.reports.examples import MAKERS, a_check, a_language, a_property, a_readings, a_recursion, violated

HOSTILE = (
    "<script>alert(1)</script>",
    "</style></script><img src=x onerror=alert(1)>",
    "{{ 7 * 7 }}{% for x in y %}",
    "[link](javascript:alert(1)) **bold** | cell",
    "\x1b[31mred\x1b[0m\x00\u202e",
    "n" * 10_000,
    "\"onmouseover='alert(1)'",
)
VOID = {"meta", "link", "br", "img", "input", "use", "path", "hr"}


class Outline(HTMLParser):
    """The page as parsed by a browser: elements, ids, texts; refuses wrong nesting."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        self.texts.setdefault(tag, [])
        if tag not in VOID:
            self._open.append(tag)
            self.texts[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        for tag in set(self._open):
            self.texts[tag][-1] += data

    def all(self, *tags: str) -> list[tuple[str, dict[str, str | None]]]:
        return [(tag, attributes) for tag, attributes in self.elements if tag in tags]


def page(folder: Path, *contents: Any) -> str:
    """The HTML page that `python -m reports page` writes for some results."""
    for number, content in enumerate(contents):
        write(folder / "in" / f"{number}.json", content)
    assert main(["page", str(folder / "in"), "-o", str(folder / "page.html")]) == 0
    return (folder / "page.html").read_text()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The page of a run that has everything, including a violation."""
    wrong = a_check("mylayer:mine", [a_property("gradient/a/b"), violated("gradient/attention/plain")])
    others = (make() for kind, make in MAKERS.items() if kind != "check")
    return page(tmp_path_factory.mktemp("page"), a_check("other:right"), wrong, *others)


def test_it_begins_with_the_answer(tmp_path: Path, whole: str) -> None:
    assert Outline(whole).texts["h1"] == [
        "1 of 2 implementations hold every property that was to be run; 1 of 14 verdicts are violations."
    ]
    right = Outline(page(tmp_path / "right", a_check()))
    assert right.texts["h1"] == ["Yes: all 12 properties of mylayer:mine that were run hold."]
    wrong = Outline(page(tmp_path / "wrong", a_check(properties=[violated("a/b/c"), a_property("a/b/d")])))
    assert wrong.texts["h1"] == ["No: 1 of 2 properties of mylayer:mine are violated."]
    undecided = a_check(properties=[a_property("a/b/c", "inconclusive", None)])
    assert Outline(page(tmp_path / "open", undecided)).texts["h1"][0].startswith("Not decided: 0 of 1")
    assert "How much is this pass worth?" not in page(tmp_path / "alone", a_check()), "nothing measured it"


def test_a_page_of_a_run_that_ended_before_it_asked_everything_does_not_say_yes(tmp_path: Path) -> None:
    absent = a_property("rejection/a/b", "not offered", None)
    quick = a_check("quick", [a_property("gradient/a/b"), absent], unasked=["gradient/a/c", "descent/a/b"])
    alone = Outline(page(tmp_path / "alone", quick))
    (answer,) = alone.texts["h1"]
    assert answer == "Not decided: 1 of 1 properties of quick hold, and none is violated; 2 were not asked."
    classes = [attributes.get("class") for _, attributes in alone.all("td")]
    cells = [cell for cell in zip(classes, alone.texts["td"], strict=True) if cell[0] in ("i", "n")]
    assert cells == [("i", "1 of 1, 1 not asked"), ("n", "not offered"), ("i", "1 not asked")]
    both = page(tmp_path / "both", quick, a_check("other:right"))
    told = "1 of 2 implementations hold every property that was to be run; 2 properties were not asked."
    assert Outline(both).texts["h1"] == [told]
    assert 'class="answer open"' in both


def test_a_red_page_says_the_cause_the_place_and_what_made_it_before_anything_else(tmp_path: Path) -> None:
    part = {"part": "mask", "because": "token 0 sees [1]"}
    ids = [f"structure/attention/case-{i}" for i in range(4)]
    wrong = [*(violated(id_, **part) for id_ in ids), violated("training/mlp/other")]
    check = a_check(properties=[*wrong, a_property("a/b/c")])
    cause: dict[str, Any] = {"name": "mask", "because": "token 0 sees [1]", "properties": ids}
    cause |= {"place": {"file": "pkg/mine.py", "line": 6, "function": "attention"}}
    cause |= {"edit": {"file": "pkg/mine.py", "line": 9, "before": "triu(m, 0)", "after": "triu(m, 1)"}}
    check["diagnosis"] = {"sentence": "", "again": "", "causes": [cause], "unexplained": ["training/mlp/other"]}
    first, _, rest = page(tmp_path, check).partition('<h2 id="violated-title">')
    shown = ("<strong>mask</strong>: token 0 sees [1]", "4 properties", "pkg/mine.py:6", "- triu(m, 0)", "torch ")
    assert [words for words in shown if words not in first] == []
    assert first.index("</h1>") < first.index("<strong>mask") < first.index("<nav")
    assert "<h2" not in first
    assert rest.count("<article") == 2, "one block per cause"
    assert "3 more properties" in rest
    del check["diagnosis"]  # as in results from before there were diagnoses
    assert page(tmp_path / "older", check).count("<article") == 2
    assert rest.index("</article>") < rest.index('id="holds-title"'), "what holds comes after it"


def test_the_comparisons_of_a_study_are_left_out_beside_the_study(tmp_path: Path) -> None:
    compared, question = {**a_readings(), "made_by": a_recursion()["made_by"]}, "What do the stored comparisons say?"
    assert question in page(tmp_path, compared)
    assert question not in page(tmp_path, compared, {**a_recursion(), "made_by": compared["made_by"]})


def test_it_asks_nobody_for_anything(whole: str) -> None:
    assert "default-src 'none'" in whole
    for tag, attributes in Outline(whole).elements:
        assert tag not in ("iframe", "object", "embed", "base"), tag
        for name, value in attributes.items():
            if name in ("src", "href", "srcset", "action", "xlink:href"):
                assert str(value).startswith(("#", "data:")), (tag, name, value)
    style = resources.files("reports.page").joinpath("page.css").read_text()
    assert "url(" not in style
    assert "@import" not in style


def test_it_has_headings_in_order_and_names_for_all_that_needs_one(whole: str) -> None:
    outline = Outline(whole)
    levels = [int(tag[1]) for tag, _ in outline.elements if re.fullmatch("h[1-6]", tag)]
    assert (levels[0], levels.count(1)) == (1, 1)
    assert all(b - a <= 1 for a, b in pairwise(levels))
    ids = [str(attributes["id"]) for _, attributes in outline.elements if "id" in attributes]
    assert len(ids) == len(set(ids))
    for _, attributes in outline.all("a"):
        target = str(attributes["href"])
        assert not target.startswith("#") or target[1:] in ids
    for _, attributes in outline.elements:
        if attributes.get("role") in ("img", "region") or "tabindex" in attributes:
            assert attributes.get("aria-label") or attributes.get("id") == "main"
    assert len(outline.all("caption")) == len(outline.all("table"))


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    checks = [a_check(name, [a_property(f"{name}/x"), violated(f"{name}/y", name)]) for name in HOSTILE]
    text = page(tmp_path, *checks, a_language(dict.fromkeys(HOSTILE, 2.9)))
    outline = Outline(text)
    assert len(outline.all("script")) == 1
    assert not [a for _, a in outline.elements for name in a if name.startswith("on")]
    assert "&lt;script&gt;alert(1)" in text
    assert "49" not in outline.texts["h1"][0]
    assert "{{ 7 * 7 }}" in text
    assert not {"\x1b", "\x00", "\u202e"} & set(text)
    assert len(text.encode()) < 3e6


def test_text_and_paper_differ_enough_in_light_and_in_dark() -> None:
    """WCAG's contrast: 4.5 for text, 3 for lines and marks."""
    style = resources.files("reports.page").joinpath("page.css").read_text()
    light, dark = (dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in style.split("@media")[:2])
    for theme in (light, dark):
        for ink in ("ink", "quiet", "link"):
            for paper in ("paper", "sheet"):
                assert contrast(theme[ink], theme[paper]) >= 4.5, (ink, paper)
        for paper in ("good-paper", "bad-paper", "unsure-paper"):
            assert contrast(theme["ink"], theme[paper]) >= 4.5, paper
        for mark in ("good", "bad", "unsure"):
            assert contrast(theme["paper"], theme[mark]) >= 4.5, "text on a bar"
        for mark in ("good", "bad", "unsure", *(f"series-{i}" for i in range(1, 8))):
            assert contrast(theme[mark], theme["paper"]) >= 3, mark


def test_many_cells_fit_into_one_page(tmp_path: Path) -> None:
    ids = list(enumerate(f"family-{k % 10}/layer/property-{k}" for k in range(60)))
    many = [[violated(id_) if k == i else a_property(id_) for k, id_ in ids] for i in range(3)]
    text = page(tmp_path, *(a_check(f"package_{i}:layer", each) for i, each in enumerate(many)))
    assert len(text.encode()) < 3e6
    assert text.count('<i class="h"></i>') + text.count('<i class="v"></i>') == 3 * 60 + 2


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


def test_the_page_has_a_section_for_it_unless_it_is_full(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    text = page(tmp_path, {**a_check(), "reach": a_reach()})
    assert '<a href="#code">Which code was reached?</a>' in text
    assert "return &#39;&lt;b&gt;&#39;" in text
    assert '<tr class="v">' in text
    assert made(a_check()) == []
    monkeypatch.setattr(listing, "BUDGET", 300)
    assert made({**a_check(), "reach": a_reach()}) == []
