"""The matrix: the latest verdict on each implementation, weaker looks paler."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from cemverify.results.envelope import write
from reports.__main__ import main
from reports.collect import collect
from reports.matrix.standings import lines_of
from reports.pictures.standings import matrix
from suites.reports.examples import a_check, a_power, a_property, violated


def dated(content: Any, day: str, examples: int = 60) -> Any:
    """The same made on another day, with another number of examples."""
    made = content["made_by"]
    configuration = {**made["configuration"], "examples": examples}
    return {**content, "made_by": {**made, "created": f"{day}T00:00:00+00:00", "configuration": configuration}}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Three implementations, one of them judged twice, and the power of the suite."""
    held = [a_property("gradient/a/b"), a_property("descent/a/b")]
    write(tmp_path / "in" / "old.json", dated(a_check("mine", [violated("gradient/a/b")]), "2026-01-01"))
    write(tmp_path / "in" / "new.json", dated(a_check("mine", held), "2026-02-01"))
    write(tmp_path / "in" / "weak.json", dated(a_check("weak", held), "2026-02-02", examples=15))
    wrong = [violated("gradient/a/b"), a_property("gradient/a/c"), a_property("descent/a/b", "not offered", None)]
    write(tmp_path / "in" / "wrong.json", dated(a_check("<b>wrong</b>", wrong), "2026-02-03"))
    write(tmp_path / "in" / "power.json", a_power(detected=4))
    return tmp_path


def test_the_latest_verdict_counts_and_a_weaker_look_is_paler(folder: Path) -> None:
    wrong, mine, weak = lines_of(collect([folder / "in"]))
    assert (wrong.implementation, mine.date, mine.older) == ("<b>wrong</b>", "2026-02-01", 1)
    assert mine.by_family["gradient"].detection == 0.8
    assert mine.by_family["descent"].detection is None
    assert mine.by_family["gradient"].strength == 1
    assert weak.by_family["gradient"].strength == 0.25
    assert [standing.verdict for standing in wrong.by_family.values()] == ["violated", "not offered"]


def test_the_table_has_a_row_for_each_implementation(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", str(folder / "in"), "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert "1/1, 60 examples, 80 % detected" in text
    assert "mine: 1 older result was left out" in text
    assert "\\<b>wrong" in text


def test_the_files_say_the_same_for_programs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["matrix", str(folder / "in"), "--output", str(folder / "out")]) == 0
    capsys.readouterr()
    rows = list(csv.DictReader((folder / "out" / "matrix.csv").open()))
    assert len(rows) == 6
    assert {"date", "suite version", "examples per property", "detection [share]"} <= set(rows[0])
    assert sorted(path.name for path in (folder / "out").iterdir()) == ["matrix.csv", "matrix.md", "matrix.svg"]
    ElementTree.fromstring((folder / "out" / "matrix.svg").read_text())  # noqa: S314


def test_a_run_that_ended_before_it_asked_everything_is_nowhere_green(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = a_check("quick", [a_property("gradient/a/b")], unasked=["gradient/a/c", "descent/a/b"])
    write(tmp_path / "quick.json", quick)
    (line,) = lines_of(collect([tmp_path]))
    assert (line.words, line.whole) == ("1 of 1 hold, 2 not asked", False)
    assert {name: standing.verdict for name, standing in line.by_family.items()} == {
        "gradient": "inconclusive",
        "descent": "inconclusive",
    }
    assert matrix([line]).title.startswith("0 of 1 implementations")
    assert main(["matrix", str(tmp_path), "--format", "markdown"]) == 0
    text = capsys.readouterr().out
    assert "1/1, 1 not asked, 60 examples" in text
    assert "| not asked" in text
