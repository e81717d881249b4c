"""What the README and docs/results show is what the commands print, draw and write."""

from __future__ import annotations

import math
import re
import shutil
from pathlib import Path

import pytest

from cemverify.results.envelope import read
from reports.__main__ import COMMANDS
from suites.kit.commands import Told
from suites.kit.source import ROOT
from synthetic.studies.engine.pages import write_page

RESULTS = ROOT / "docs" / "results"
STUDY = RESULTS / "recursion.json"


def test_the_page_of_reports_names_every_command_and_its_table_is_what_is_printed(told: Told) -> None:
    page = (ROOT / "docs" / "reports.md").read_text()
    assert [name for name in COMMANDS if f"| `{name}` |" not in page] == []
    printed = told(f"reports tables {STUDY} --tables readings --format markdown").out
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert "\n".join(rows) in page


def test_the_readme_counts_what_the_study_in_its_picture_decides(told: Told) -> None:
    printed = told(f"reports tables {STUDY} --tables readings --format csv").out
    said = [
        line.rpartition(",")[2] for line in printed.splitlines() if line.startswith(("rbf", "matern", "per", "warp"))
    ]
    assert len(said) == 24
    counts = f"of 24 comparisons of two T, {said.count('better')} favour more steps and {said.count('worse')} fewer"
    shown = re.search(r"!\[([^\]]{40,})\]\(docs/results/recursion-ratios\.svg\)", (ROOT / "README.md").read_text())
    assert shown
    assert counts in " ".join(shown[1].split())


def test_the_page_of_benchmarks_and_its_picture_are_made_again_of_their_result_file(here: Path, told: Told) -> None:
    """Byte for byte; the pages of studies are remade in the tests of the studies."""
    folder = here / "docs" / "results"
    folder.mkdir(parents=True)
    shutil.copy(RESULTS / "benchmarks.json", folder)
    told("benchmarks --report docs/results/benchmarks.json --page docs/results/benchmarks.md")
    for name in ("benchmarks.md", "benchmarks-roofline.svg"):
        assert (folder / name).read_bytes() == (RESULTS / name).read_bytes(), name


def test_every_learning_rate_that_a_published_study_searched_for_lies_between_worse_ones() -> None:
    rows = [row for file in RESULTS.glob("recursion*.json") for row in read(file).get("rows", ()) if row.get("tried")]
    assert rows
    for row in rows:
        found = {rate: math.inf if error is None else error for rate, error in row["tried"]}
        best = row["learning_rate"]
        assert (found[best], len(found) >= 4) == (min(found.values()), True), row["name"]
        assert min(found) < best < max(found), row["name"]


def with_page() -> list[str]:
    return sorted(file.stem for file in RESULTS.glob("*.json") if "page" in read(file))


@pytest.mark.parametrize("name", with_page())
def test_a_page_that_its_file_holds_is_made_again_with_its_pictures_byte_for_byte(name: str, tmp_path: Path) -> None:
    written = write_page(tmp_path / f"{name}.md", read(RESULTS / f"{name}.json"))
    assert len(written) > 1
    for path in written:
        assert path.read_bytes() == (RESULTS / path.name).read_bytes(), path.name


def test_what_a_page_is_made_of_lies_beside_every_page() -> None:
    """Its cells, its rows, or the content of the page; for a page on several studies, their files."""
    with_cells = {file.name.partition(".")[0] for file in RESULTS.glob("*.cells.jsonl")}
    with_cells |= {file.stem for file in RESULTS.glob("*.json") if "rows" in read(file)}
    readings = {file.stem for file in RESULTS.glob("*.json") if read(file)["kind"] == "readings"}
    assert readings - with_cells - set(with_page()) == set()
    assert [stem for stem in readings if not (RESULTS / f"{stem}.md").exists()] == []
