"""Every property can be explained in full: formula, why it matters, its mutants, and a real violation."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cemverify.catalogue import index
from cemverify.catalogue.versions import current, introduced
from cemverify.cli import main
from cemverify.commands import catalogue as writing
from cemverify.commands import list as list_command
from cemverify.commands import property_page
from cemverify.conformance.properties import by_id, catalogue
from cemverify.console.errors import UsageError
from cemverify.results import envelope


def test_every_property_has_a_formula_and_a_reason_in_a_sentence() -> None:
    for row in index.recorded():
        assert row.formula
        assert row.why[0].isupper() or row.why.startswith(("exp ", "x and h "))
        assert row.why.endswith("."), row.id


def test_the_list_says_what_the_properties_declare() -> None:
    command = "python -m cemverify.commands.catalogue"
    assert index.FILE.read_text(encoding="utf-8") == writing.text(), f"write it again: {command}"


def test_no_id_leaves_the_catalogue_or_moves_in_it_unnoticed() -> None:
    old = {row.id: row.since for row in index.recorded()}
    rows = writing.rows()
    first, second = rows[0], rows[1]
    writing.check(old, rows)
    writing.check(old, rows[1:], removing=[first.id])
    for now, complaint in (
        (rows[1:], f"no property is declared with the id {first.id}"),
        ([*rows, first], f"two properties have the id {first.id}"),
        ([replace(first, since="2027.02"), *rows[1:]], f"{first.id} came with catalogue 2026.11"),
    ):
        with pytest.raises(UsageError, match=complaint):
            writing.check(old, now)
    later = {**old, first.id: "2027.02"}
    del later[second.id]
    with pytest.raises(UsageError, match=f"{second.id} is new .* a catalogue 2027.02 already"):
        writing.check(later, [replace(first, since="2027.02"), *rows[1:]])


def test_a_list_that_cannot_be_read_is_not_written_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    conflict = tmp_path / "listing.jsonl"
    conflict.write_text("<<<<<<< HEAD\n")
    monkeypatch.setattr(index, "FILE", conflict)
    with pytest.raises(UsageError, match=r"listing\.jsonl cannot be read"):
        writing.before()


def test_every_property_names_a_mutant_that_it_kills() -> None:
    assert [p.id for p in catalogue() if not property_page.killers(p)] == []


@pytest.mark.parametrize("width", [None, 40, 57, 80, 200])
def test_an_explanation_fits_the_terminal(width: int | None) -> None:
    for property_ in catalogue()[::10]:
        _id, *lines = property_page.explanation(property_, width).splitlines()
        assert max(map(len, lines)) <= (width or 110)


def test_one_property_is_explained_with_a_violation_that_was_found_now(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    id_ = "gradient/mlp/silu"
    assert main(["list", id_, "--json", str(tmp_path / "list.json")]) == 0
    output = capsys.readouterr().out
    for part in (
        by_id(id_).formula,
        "controls",
        f"catalogue {current()}",
        f"VIOLATED {id_}",
        "smallest case found",
    ):
        assert part in output
    (mutant, *_) = property_page.killers(by_id(id_))
    assert f"{mutant.id}: " in output
    assert f"found just now in the mutant {mutant.id}" in output
    (written,) = envelope.read(tmp_path / "list.json")["properties"]
    assert written["introduced"] == introduced()[id_]
    assert mutant.id in written["kills"]
    assert json.dumps(written["formula"]) in (tmp_path / "list.json").read_text()


def test_a_prefix_or_several_ids_are_listed_instead(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list", "tying/block"]) == 0
    output = capsys.readouterr().out
    assert output.startswith("property ")
    assert f"1 property, catalogue {current()}." in output


@pytest.mark.parametrize("width", [40, 57, 80, 119, 200])
def test_the_list_fits_the_terminal(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = index.listed()[::7]
    list_command._list(chosen, width)
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= width
    flat = "".join(output.split())
    assert width < 120 or all(p.id in flat for p in chosen)  # the longest ids take 49 columns, and wrap before


@pytest.mark.thorough
@pytest.mark.parametrize("id_", [p.id for p in catalogue() if "cuda" not in p.id])
def test_every_explanation_shows_a_violation(id_: str) -> None:
    assert f"VIOLATED {id_}" in property_page.violation(by_id(id_), None)
