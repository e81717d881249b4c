"""Tables: every format says the same, and a damaged file is named, not shown."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cemverify.results.envelope import Table, read, result, write
from cemverify.results.provenance import Maker
from cemverify.results.tables import RENDERERS, Strong, comma_separated, csv_rows, latex, markdown, terminal
from reports.kinds import sheets_of
from suites.kit.commands import Told
from suites.reports.examples import a_check, a_language, a_property, a_recursion, violated
from synthetic.figures.sheets import Column, Group, Quantity, Sheet, numbers, printed, rounded
from synthetic.studies.recursion.tables import headline, winner

TABLE = Table("Errors", ["a|b", "error", "note"], [["x|y", "0.10", None], ["z", "0.05 ± 0.01", True]])


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two results, one in a sub-folder, and a JSON file of another kind."""
    made = result("examine", Maker.now("python -m synthetic recursion", {"steps": [1]}, 3, "cpu"), [TABLE], {})
    write(tmp_path / "b.json", made)
    write(tmp_path / "deep" / "a.json", {**made, "kind": "atlas"})
    (tmp_path / "other.json").write_text('{"schema": "something else"}')
    return tmp_path


TEXT = st.text(st.characters() | st.sampled_from("<>|\\\n\r%&$#_{}[]()`=@\x1b\u2028\ud800"), max_size=20)


@given(TEXT, TEXT, TEXT, TEXT)
def test_no_text_leaves_its_place_in_any_format(title: str, origin: str, column: str, cell: str) -> None:
    tables = [Table(f"t{title}", [f"c{column}", "d"], [[f"x{cell}", 1]])]
    for render in RENDERERS.values():
        rendered = render(tables, [f"o{origin}"])
        assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f\u2028\ud800-\udfff]", rendered)
        rendered.encode()
    assert not re.search(r"(?<!\\)(\\\\)*<[A-Za-z/!?]", markdown(tables, ["o"]))
    assert len(markdown(tables, ["o"]).splitlines()) == 7
    first, second, third = latex(tables, [f"o{origin}"]).splitlines()[:3]
    assert (first[:3], second[:3], third) == ("% t", "% o", r"\begin{table}[htbp]")
    assert comma_separated(tables, [f"o{origin}"]).splitlines()[1].startswith("# o")


def test_a_bar_in_a_cell_does_not_open_a_new_one_in_markdown() -> None:
    lines = markdown([TABLE]).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert {line.replace("\\|", "").count("|") for line in rows} == {4}
    assert "x\\|y" in rows[2]


def test_csv_reads_back_as_the_table_with_every_digit_and_units_in_its_heading() -> None:
    awkward = Table("t", ["a", "b"], [['say "x, y"', "1,000"], ["two\nlines", 0.5]])
    assert list(csv.reader(io.StringIO(csv_rows(awkward)))) == [
        ["a", "b"],
        ['say "x, y"', "1,000"],
        ["two\nlines", "0.5"],
    ]
    assert comma_separated([awkward]).startswith("# t\na,b\n")
    sheet = Sheet("t", [Column("name"), Column("time", "ms")], [Group("", [["a", Quantity(1 / 3, 0.1)]])])
    assert list(csv.reader(io.StringIO(numbers(sheet)))) == [
        ["name", "time [ms]", "time ± [ms]"],
        ["a", "0.3333333333333333", "0.1"],
    ]


def test_latex_escapes_what_it_would_interpret() -> None:
    text = latex([Table("t", ["share_%", "words"], [["5 %", "many words " * 9]])])
    assert "share\\_\\%" in text
    assert r"\begin{tabular}{rp{14em}}" in text, "a column of words is not wider than a page"
    assert "5 \\%" in text
    (title, cell) = ("p < 0.05: |x| → no T^phi fits", "|x| → <y>")
    text = latex([Table(title, ["words"], [[cell]])])
    assert r"\caption{p $<$ 0.05: $|$x$|$ $\rightarrow$ no $T^\phi$ fits}" in text
    assert r"$|$x$|$ $\rightarrow$ \ensuremath{<}y\ensuremath{>}" in text


def test_a_table_without_rows_shows_its_heading_and_a_row_of_another_length_is_refused() -> None:
    for render in RENDERERS.values():
        assert "lonely" in render([Table("t", ["lonely"], [])], [])
    with pytest.raises(ValueError, match="2 columns, but a row of 1"):
        terminal([Table("t", ["a", "b"], [["1"]])])
    with pytest.raises(ValueError, match="shorter"):
        terminal([TABLE, TABLE], ["only one"])


def test_a_folder_stands_for_its_results_each_once_below_what_made_it(folder: Path, told: Told) -> None:
    text = told(f"reports tables {folder} {folder / 'b.json'}").out
    assert text.count("Errors") == 2
    assert text.index("examine by cemverify") < text.index("atlas by cemverify")
    origin = told(f"reports tables {folder / 'b.json'} --format markdown").out.splitlines()[2]
    content = read(folder / "b.json")
    made_by = content["made_by"]
    for part in ("examine", content["suite_version"], made_by["command"], made_by["created"], "seed 3", "cpu"):
        assert part in origin


def test_a_report_may_lie_in_the_folder_it_is_made_from(folder: Path, told: Told) -> None:
    first = told(f"reports tables {folder} --output {folder}").out
    assert {path.name for path in folder.iterdir()} >= {"report.md", "01-examine.csv", "02-atlas.csv"}
    report = (folder / "report.md").read_text()
    assert told(f"reports tables {folder} --output {folder}").out == first
    assert (folder / "report.md").read_text() == report


def test_a_number_has_as_many_digits_as_its_uncertainty_leaves() -> None:
    column = Column("error")
    assert rounded(Quantity(0.123456, 0.0123), column) == "0.123 ± 0.012"
    assert rounded(Quantity(1234.56, 78.9), column) == "1,235 ± 79"
    assert rounded(Quantity(0.9, interval=(0.8, 1.0)), column) == "0.90 [0.80, 1.00]"
    assert rounded(Quantity(0.8764, 0.021), Column("share", "%")) == "87.6 ± 2.1 %"
    assert rounded(Quantity(0.123456), column) == "0.123"
    assert rounded(Quantity(None), column) == "–"


def test_where_a_number_is_missing_it_stands_why() -> None:
    why = "2 of 3 runs diverged"
    sheet = Sheet("t", [Column("a"), Column("b")], [Group("", [[Quantity(None, note=why)] * 2])])
    table = printed(sheet)
    assert table.rows == [[why, why]]
    assert why in markdown([table])
    assert why in numbers(sheet)


def test_the_best_is_bold_only_if_the_paired_test_says_so(tmp_path: Path, told: Told) -> None:
    clear = {"a": 2 * [0.10, 0.11, 0.12], "b": 2 * [0.20, 0.22, 0.24], "c": 2 * [0.30, 0.33, 0.35]}
    assert winner(clear) == "a"
    assert winner({**clear, "b": 2 * [0.2, 0.1, 0.12]}) is None
    halved = 2 * (0.5, 0.51, 0.49)
    assert winner({"a": [0.1]}) is None
    assert winner({"a": [0.1], "b": [0.2]}) is None
    table = printed(sheets_of(a_recursion(halved), fold=True)[0])
    bold = [cell for row in table.rows for cell in row if isinstance(cell, Strong)]
    assert len(bold) == 1
    assert f"**{bold[0]}**" in markdown([table])
    assert rf"\textbf{{{bold[0]}}}" in latex([table])
    assert table.notes[0].startswith("Bold marks the best of the trained models")
    for factors, has_best in ((halved, True), ((1.0,) * 6, False)):
        write(tmp_path / "r.json", a_recursion(factors))
        text = told(f"reports tables {tmp_path / 'r.json'}").out
        for words in (f"{bold[0]} *", "A star marks the best of the trained models", "mark"):
            assert (words in text) == has_best


def test_an_older_file_with_few_functions_is_judged_by_the_rule_of_today() -> None:
    content = a_recursion()
    content["rows"][6]["deeper"] |= {"n": 5, "conclusion": "better"}
    (row,) = [row for row in printed(sheets_of(content, fold=True)[0]).rows if row[0] == "CEM, T = 4"]
    assert row[-1] == "too few functions (6 needed)"
    assert headline(content).endswith("too few functions (6 needed); one learning rate was tried")


def test_one_rate_that_was_tried_is_marked_as_one_at_the_edge_is() -> None:
    content = a_recursion()
    rates = content["made_by"]["configuration"]["rates"]
    assert [row[1] for row in printed(sheets_of(content, True)[0]).rows[5:7]] == [f"{rates[0]:g} (only rate)"] * 2
    rates.append(1.0)
    content["rows"][6]["at_edge"] = True
    assert [row[1] for row in printed(sheets_of(content, True)[0]).rows[5:7]] == ["0.01", "0.01 (edge)"]


def test_the_summary_says_what_it_shows_and_how_rates_were_tried(tmp_path: Path, told: Told) -> None:
    content, title = a_recursion(), "RMSE, mean over functions [95 \\% interval]; ratio of the RMSE to"
    for rates, note in (([0.01], "One learning rate was tried."), ([0.01, 1.0], "of the rates tried: CEM, T = 4.")):
        content["made_by"]["configuration"]["rates"] = rates
        write(tmp_path / "r.json", content)
        text = told(f"reports tables {tmp_path / 'r.json'} --format latex").out
        lines = [" & ".join(cell.strip() for cell in line.rstrip("\\ ").split("&")) for line in text.splitlines()]
        assert "model & T & RMSE & ratio & verdict" in lines
        assert [words for words in (title, note) if words not in text] == []
        content["rows"][6]["at_edge"] = True
    text = told(f"reports tables {tmp_path / 'r.json'} --format latex --columns model rate").out
    assert "6 functions}" in text  # columns that are not shown are not explained
    assert [text.count(f"\n {name} ") for name in ("ridge", "kernel ridge", "exact GP (floor)")] == [1, 1, 1]
    old = told("reports tables docs/results/recursion-dial.json --format latex").out  # only ratios
    assert old.count(r"\begin{table}") == 1


def test_tables_and_columns_are_chosen_by_name(tmp_path: Path, told: Told) -> None:
    file = tmp_path / "a_b%.json"  # characters that LaTeX would interpret
    write(file, a_recursion())
    chosen = f"reports tables {file} --tables errors --columns ratio model --format"
    heading = next(line for line in told(f"{chosen} markdown").out.splitlines() if line.startswith("|"))
    assert [cell.strip() for cell in heading.strip("|").split("|")] == ["ratio to T = 2", "model"]
    csv_text = told(f"{chosen} csv").out
    assert "group,ratio to T = 2,ratio to T = 2 low,ratio to T = 2 high,model" in csv_text
    text = told(f"reports tables {file} --format latex").out  # only the summary
    assert (text.count(r"\begin{table}"), text.count(r"\label{tab:a-b-summary}")) == (1, 1)
    for option, name in (("--tables", "all"), ("--columns", "loss")):
        assert re.search(
            f"{name!r}; choose from .*(errors|RMSE)", told(f"reports tables {file} {option} {name}", 2).err
        )


def test_baselines_and_the_floor_are_set_apart_and_never_bold() -> None:
    table = printed(sheets_of(a_recursion(), fold=True)[0])
    assert [row[0] for row in table.rows[1::4]] == ["ridge", "CEM, T = 2"]
    assert [row[0] for row in table.rows[-2:]] == ["CEM, T = 4", "exact GP (floor)"]
    assert table.rules == [5, 7]
    assert "ratio to T = 2" in table.columns
    assert latex([table]).count(r"\midrule") == 3


def test_a_study_and_its_report_have_the_same_tables_and_csv_has_every_digit() -> None:
    content = a_recursion()
    sheets = sheets_of(content, fold=True)
    tables = [printed(sheet) for sheet in sheets]
    assert [table.title for table in tables] == [table["title"] for table in content["tables"]]
    assert [[list(map(str, row)) for row in table.rows] for table in tables[1:]] == [
        [[str(cell) for cell in row] for row in table["rows"]] for table in content["tables"][1:]
    ]
    assert str(content["rows"][5]["rmse"]["std"]) in numbers(sheets[0])


def test_a_model_that_diverged_says_so_in_the_place_of_its_bits() -> None:
    table = printed(sheets_of(a_language({"good": 2.0, "bad": None}), fold=True)[0])
    assert "diverged at step 3" in table.rows[1]


def test_families_are_folded_and_violations_are_not() -> None:
    held = [a_property(f"gradient/attention/case-{i}", margin=i / 10) for i in range(5)]
    absent = [a_property(f"gradient/attention/absent-{i}", "not offered", None) for i in range(3)]
    content = a_check(properties=[*held, violated("gradient/attention/plain"), *absent])
    folded = printed(sheets_of(content, fold=True)[0])
    names = ["gradient/attention/plain", "gradient: 5 hold", "gradient: 3 not offered"]
    assert [row[0] for row in folded.rows] == names
    assert folded.rows[1][5] == "0.400"
    assert len(printed(sheets_of(content, fold=False)[0]).rows) == 9


def test_a_terminal_table_fits_its_width() -> None:
    words = "many words about what one may say of it " * 4
    table = Table("t", ["name", "figure", *"abcdefgh"], [["a-model/with/a/long/name" * 3, words, *["1,234,567"] * 8]])
    for width in (40, 60, 80, 120):
        assert max(map(len, terminal([table], ["made by " * 30], width).splitlines())) <= width
    assert len(terminal([table]).splitlines()) == 5
