"""Tables from results: digits by the uncertainty, bold by the paired test, families folded, CSV for programs."""

from __future__ import annotations

import csv
import io

from cemverify.results.envelope import Table
from cemverify.results.tables import Strong, latex, markdown, terminal
from reports.kinds import printed_tables
from reports.kinds.recursion import winner
from reports.sheets import Column, Group, Quantity, Sheet, numbers, printed, rounded
from suites.reports.examples import a_check, a_language, a_property, a_recursion, violated


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
    sheet = Sheet(
        "t", [Column("a"), Column("b")], [Group("", [[Quantity(None, note=why), Quantity(None, note=why)]])]
    )
    table = printed(sheet)
    assert table.rows == [[why, why]]
    assert why in markdown([table])
    assert why in numbers(sheet)


def test_csv_has_every_digit_and_the_unit_in_the_heading() -> None:
    sheet = Sheet("t", [Column("name"), Column("time", "ms")], [Group("", [["a", Quantity(1 / 3, 0.1)]])])
    assert list(csv.reader(io.StringIO(numbers(sheet)))) == [
        ["name", "time [ms]", "time ± [ms]"],
        ["a", "0.3333333333333333", "0.1"],
    ]


def test_the_best_is_bold_only_if_the_paired_test_says_so() -> None:
    clear = {"a": [0.10, 0.11, 0.12], "b": [0.20, 0.22, 0.24], "c": [0.30, 0.33, 0.35]}
    assert winner(clear) == "a"
    assert winner({**clear, "b": [0.2, 0.1, 0.12]}) is None
    assert winner({"a": [0.1]}) is None
    assert winner({"a": [0.1], "b": [0.2]}) is None
    table = printed_tables(a_recursion((0.5, 0.51, 0.49)), fold=True)[0].table
    bold = [cell for row in table.rows for cell in row if isinstance(cell, Strong)]
    assert len(bold) == 1
    assert f"**{bold[0]}**" in markdown([table])
    assert rf"\textbf{{{bold[0]}}}" in latex([table])


def test_baselines_and_the_floor_are_set_apart_and_never_bold() -> None:
    table = printed_tables(a_recursion(), fold=True)[0].table
    assert [row[0] for row in table.rows[1::4]] == ["ridge", "CEM, T = 2"]
    assert [row[0] for row in table.rows[-2:]] == ["CEM, T = 4", "exact GP (floor)"]
    assert table.rules == [5, 7]
    assert "ratio to T = 2" in table.columns
    assert latex([table]).count(r"\midrule") == 3


def test_a_study_and_its_report_have_the_same_tables_and_csv_has_every_digit() -> None:
    content = a_recursion()
    tables = printed_tables(content, fold=True)
    assert [one.table.title for one in tables] == [table["title"] for table in content["tables"]]
    assert [[list(map(str, row)) for row in one.table.rows] for one in tables[1:]] == [
        [[str(cell) for cell in row] for row in table["rows"]] for table in content["tables"][1:]
    ]
    assert str(content["rows"][5]["rmse"]["std"]) in tables[0].csv


def test_a_model_that_diverged_says_so_in_the_place_of_its_bits() -> None:
    table = printed_tables(a_language({"good": 2.0, "bad": None}), fold=True)[0].table
    assert "diverged at step 3" in table.rows[1]


def test_families_are_folded_and_violations_are_not() -> None:
    held = [a_property(f"gradient/attention/case-{i}", margin=i / 10) for i in range(5)]
    absent = [a_property(f"gradient/attention/absent-{i}", "not offered", None) for i in range(3)]
    content = a_check(properties=[*held, violated("gradient/attention/plain"), *absent])
    folded = printed_tables(content, fold=True)[0].table
    assert [row[0] for row in folded.rows] == [
        "gradient/attention/plain",
        "gradient: 5 hold",
        "gradient: 3 not offered",
    ]
    assert folded.rows[1][5] == "0.400"
    assert len(printed_tables(content, fold=False)[0].table.rows) == 9


def test_a_terminal_table_fits_its_width() -> None:
    words = "many words about what one may say of it " * 4
    table = Table("t", ["name", "figure", *"abcdefgh"], [["a-model/with/a/long/name" * 3, words, *["1,234,567"] * 8]])
    for width in (40, 60, 80, 120):
        assert max(map(len, terminal([table], ["made by " * 30], width).splitlines())) <= width
    assert len(terminal([table]).splitlines()) == 5
