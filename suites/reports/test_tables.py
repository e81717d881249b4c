"""Tables: every format says the same, and a damaged file is named, not shown."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import matplotlib
import pytest

from cemverify.results.envelope import Table, read, result, write
from cemverify.results.provenance import Maker
from cemverify.results.tables import RENDERERS, comma_separated, csv_rows, latex, markdown, terminal
from reports.__main__ import main
from reports.pictures.charts import Curve, Panel, side_by_side
from suites.kit.commands import refused

TABLE = Table("Errors", ["a|b", "error", "note"], [["x|y", "0.10", None], ["z", "0.05 ± 0.01", True]])


def a_result(**changes: Any) -> dict[str, Any]:
    made = result("examine", Maker.now("python -m synthetic recursion", {"steps": [1]}, 3, "cpu"), [TABLE], {})
    return {**made, **changes}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two results, one in a sub-folder, beside a JSON file that is something else."""
    write(tmp_path / "b.json", a_result())
    write(tmp_path / "deep" / "a.json", a_result(kind="atlas"))
    (tmp_path / "other.json").write_text('{"schema": "something else"}')
    return tmp_path


@pytest.mark.parametrize("name", RENDERERS)
def test_every_format_keeps_figures_as_they_were_rounded(name: str) -> None:
    text = RENDERERS[name]([TABLE], ["made by hand"])
    assert "0.10" in text
    assert "0.05 ± 0.01" in text
    assert "made by hand" in text


def test_a_bar_in_a_cell_does_not_open_a_new_one_in_markdown() -> None:
    lines = markdown([TABLE]).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {4}
    assert "x\\|y" in rows[2]


def test_csv_reads_back_as_the_table() -> None:
    awkward = Table("t", ["a", "b"], [['say "x, y"', "1,000"], ["two\nlines", 0.5]])
    assert list(csv.reader(io.StringIO(csv_rows(awkward)))) == [
        ["a", "b"],
        ['say "x, y"', "1,000"],
        ["two\nlines", "0.5"],
    ]
    assert comma_separated([awkward]).startswith("# t\na,b\n")


def test_latex_escapes_what_it_would_interpret() -> None:
    text = latex([Table("t", ["share_%"], [["5 %"]])])
    assert "share\\_\\%" in text
    assert "5 \\%" in text


def test_the_terminal_puts_figures_flush_right_and_words_flush_left() -> None:
    text = terminal([Table("t", ["name", "figure"], [["long name", "1"], ["x", "1,000"]])])
    assert text.splitlines()[-2:] == ["long name         1", "x             1,000"]


def test_a_table_without_rows_still_shows_its_heading() -> None:
    for render in RENDERERS.values():
        assert "lonely" in render([Table("t", ["lonely"], [])], [])


def test_a_row_of_another_length_and_a_missing_origin_are_refused() -> None:
    with pytest.raises(ValueError, match="2 columns, but a row of 1"):
        terminal([Table("t", ["a", "b"], [["1"]])])
    with pytest.raises(ValueError, match="shorter"):
        terminal([TABLE, TABLE], ["only one"])


def test_a_folder_stands_for_its_results_each_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", str(folder), str(folder / "b.json")]) == 0
    text = capsys.readouterr().out
    assert text.count("Errors") == 2
    assert text.index("examine by cemverify") < text.index("atlas by cemverify")


def test_above_each_table_stands_what_made_it(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", str(folder / "b.json"), "--format", "markdown"]) == 0
    content = read(folder / "b.json")
    origin = capsys.readouterr().out.splitlines()[2]
    made_by = content["made_by"]
    for part in ("examine", content["suite_version"], made_by["command"], made_by["created"], "seed 3", "cpu"):
        assert part in origin


def test_a_report_may_lie_in_the_folder_it_is_made_from(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tables", str(folder), "--output", str(folder)]) == 0
    first = capsys.readouterr().out
    assert {path.name for path in folder.iterdir()} >= {"report.md", "01-examine.csv", "02-atlas.csv"}
    report = (folder / "report.md").read_text()
    assert main(["tables", str(folder), "--output", str(folder)]) == 0
    assert capsys.readouterr().out == first
    assert (folder / "report.md").read_text() == report


@pytest.mark.parametrize(
    "damage",
    [
        {"made_by": {"command": "c", "created": "d", "seed": 0, "duration_seconds": None}},
        {"tables": [{"title": "t", "columns": ["a"], "rows": [["1", "2"]]}]},
        {"tables": [{"title": "t", "columns": ["a"], "rows": [1]}]},
    ],
    ids=["duration", "ragged table", "no rows"],
)
def test_a_damaged_file_is_refused_with_one_sentence_and_nothing_is_written(
    damage: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(folder / "bad.json", a_result(**damage))
    sentence = refused(["reports", "tables", str(folder), "--output", str(folder / "report")], capsys)
    assert "bad.json is damaged" in sentence
    assert not (folder / "report").exists()


def test_the_same_figure_has_the_same_bytes_and_leaves_the_callers_backend_alone() -> None:
    panel = Panel("t", "x", "y", [Curve("a", [1, 2, 4], [3, 2, 1], [2, 1, 0.5], [4, 3, 2])], level=("floor", 0.5))
    with matplotlib.rc_context({"backend": "pdf"}):
        first = side_by_side([panel])
        assert matplotlib.get_backend() == "pdf"
    assert side_by_side([panel]) == first
    assert "floor" in first
