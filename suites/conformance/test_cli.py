"""The command line, as its user meets it."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cemverify.cli import main
from cemverify.conformance.gate import known_violations
from cemverify.conformance.properties import catalogue
from cemverify.results import envelope
from suites.kit.examples import TIED, UNTIED

FEW = [
    *("--properties", "gradient/attention/plain", "structure/attention/causality"),
    *("--examples", "20", "--workers", "1"),
]


@pytest.fixture
def workplace(here: Path) -> Path:
    (here / "tied.py").write_text(TIED)
    (here / "untied.py").write_text(UNTIED)
    return here


@pytest.mark.slow
def test_first_ends_at_a_violation_and_tells_how_much_was_not_asked(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--properties", "gradient/attention/plain", "structure/attention", "--examples", "5", "--workers", "1"]
    assert main(["check", "untied:mine", *options, "--first", "--json", "r.json", "--junit", "r.xml"]) == 1
    content = envelope.read(workplace / "r.json")
    asked = [p["id"] for p in content["properties"] if p["verdict"] != "not offered"]
    assert "gradient/attention/plain" in asked
    left = content["counts"]["not_asked"]
    assert left == len(content["unasked"]) > 0
    assert content["counts"]["applicable"] == len(content["properties"]) + left
    printed = capsys.readouterr().out
    assert f"{left} not asked, as the run ended before" in printed
    assert f"1 of {len(asked)} violated ({left} not asked): " in printed
    suite = ElementTree.parse(workplace / "r.xml").getroot()[0]  # noqa: S314
    assert suite.get("tests") == str(len(suite.findall("testcase"))) == str(content["counts"]["applicable"])
    assert len(suite.findall(".//skipped[@type='not asked']")) == left


@pytest.mark.slow
def test_a_terse_run_is_a_line_for_each_verdict_and_one_of_json(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--properties", "gradient/attention/plain", "--examples", "5", "--workers", "1"]
    assert main(["check", "untied:mine", *options, "--terse"]) == 1
    printed = capsys.readouterr()
    line, last = printed.out.splitlines()
    assert line.startswith("violated gradient/attention/plain [")
    told = json.loads(last)
    assert told["exit_code"] == 1
    assert told["counts"]["violated"] == 1
    assert told["diagnosis"]["causes"][0]["properties"] == ["gradient/attention/plain"]
    assert not printed.err


@pytest.mark.slow
def test_a_file_that_cannot_be_written_costs_neither_the_verdict_nor_other_files(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _: str) -> None:
        raise envelope.ResultError(f"cannot write {path}")

    ids = ["gradient/attention/plain", "tying/attention/multi-head-attention"]
    check = ["check", "untied:mine", "--properties", *ids, "--examples", "5", "--workers", "1"]
    check += ["--json", "r.json", "--known", "k.toml", "--update-known", "--reason", "ours"]
    (workplace / "my found" / "gradient-attention-plain.npz").mkdir(parents=True)
    assert main([*check, "--save-counterexamples", "my found"]) == 2
    captured = capsys.readouterr()
    assert "2 run: 0 hold, 2 violated (2 known)" in captured.out
    assert captured.err.endswith(
        "error: cannot write my found/gradient-attention-plain.npz: it is a folder; give a file name\n"
    )
    saved = f"my found/{ids[1].replace('/', '-')}.json"
    assert f"counterexample saved: cemverify replay '{saved}'\n" in captured.err
    assert all((workplace / name).exists() for name in ("r.json", "k.toml", saved))

    (workplace / "k.toml").unlink()
    (workplace / "r.json").unlink()
    monkeypatch.setattr("cemverify.conformance.gate.accepting.write_text", refuse)
    assert main(check) == 2
    captured = capsys.readouterr()
    assert "2 of 2 violated" in captured.out
    assert captured.err.endswith("error: cannot write k.toml\n")
    assert main([*check[:-5], "--junit", "/dev/full", "--markdown", "r.md"]) == 2
    assert capsys.readouterr().err.endswith("error: cannot write /dev/full: No space left on device\n")
    assert Path("r.md").exists()
    assert not any("known" in p for p in envelope.read(workplace / "r.json")["properties"])


@pytest.mark.slow
def test_a_check_within_a_moment_begins_little_and_tells_what_that_is_worth(
    workplace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "tied:mine", "--within", "0.001", "--examples", "5", "--json", "r.json"]) == 0
    content = envelope.read(workplace / "r.json")
    counts, worth = content["counts"], content["worth"]
    assert 1 <= counts["run"] < counts["not_asked"]
    assert 0 < worth["killed"] < worth["of"]
    printed = re.sub(r"\s+", " ", capsys.readouterr().out)
    assert f"catch at least {worth['killed']} of the {worth['of']} known faults" in printed


@pytest.mark.slow
def test_first_goes_on_after_a_known_violation(workplace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = [*FEW, "--known", "known.toml"]
    assert main(["check", "untied:mine", *options, "--update-known", "--reason", "later"]) == 0
    capsys.readouterr()
    assert main(["check", "untied:mine", *options, "--first"]) == 0
    assert "2 run: 1 hold, 1 violated (1 known)" in capsys.readouterr().out


@pytest.mark.slow
def test_accepted_violations_pass_until_they_expire(
    workplace: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    check = ["check", "untied:mine", "--properties", "gradient/attention/plain", "--examples", "6", "--workers", "1"]
    assert main([*check, "--known", "k.toml", "--update-known", "--reason", "ours", "--json", "r.json"]) == 0
    assert "1 violated (1 known)" in capsys.readouterr().out
    content = envelope.read(workplace / "r.json")
    assert [e["standing"] for e in content["known"]["entries"]] == ["known"]
    assert [p["known"] for p in content["properties"]] == ["ours"]

    # half a year later nothing got worse, but the list is stale
    monkeypatch.setattr(known_violations, "today", lambda: datetime.now(UTC).date() + timedelta(days=180))
    files = ["--json", "s.json", "--junit", "s.xml", "--markdown", "s.md"]
    assert main([*check, "--known", "k.toml", "--baseline", "r.json", *files]) == 1
    printed = capsys.readouterr().out
    assert "delete the entry on line 4" in printed
    assert "compared with r.json: nothing got worse" in printed
    envelope.read(workplace / "s.json")
    suites = ElementTree.parse(workplace / "s.xml").getroot()  # noqa: S314
    assert [suite.get("failures") for suite in suites] == ["1", "1", "0"]
    assert re.search(r"^\| +4 \| gradient/attention/plain", (workplace / "s.md").read_text(), re.MULTILINE)


def test_list_shows_all_families_every_property_and_every_feature(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for width in (80, None):
        monkeypatch.setattr("cemverify.commands.list.columns", lambda *_, width=width: width)
        assert main(["list"]) == 0
        families = capsys.readouterr().out
        assert all(re.search(rf"^ *{p.family} ", families, re.MULTILINE) for p in catalogue())
        assert width is None or max(map(len, families.splitlines())) <= width
    assert main(["list", "*"]) == 0
    printed = capsys.readouterr().out
    assert all(p.id in printed for p in catalogue())
    assert main(["list", "--features"]) == 0
    assert "preconditioner:low-rank-printed" in capsys.readouterr().out
    assert main(["list", "--features", "--json", "l.json"]) == 2
