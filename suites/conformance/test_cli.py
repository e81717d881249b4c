"""The command line, as a user sees it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from xml.etree import ElementTree

import pytest

from cemverify.conformance.gate import known_violations
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.properties import catalogue
from cemverify.conformance.workers import isolation
from cemverify.results import envelope
from suites.kit.commands import Told
from suites.kit.examples import TIED, UNTIED
from suites.kit.processes import heed

UNTIED_ALONE = "cemverify check untied:mine --examples 5 --workers 1 --properties gradient/attention/plain"


@pytest.fixture
def workplace(here: Path) -> Path:
    (here / "tied.py").write_text(TIED)
    (here / "untied.py").write_text(UNTIED)
    return here


@pytest.mark.slow
def test_first_ends_at_a_violation_and_tells_how_much_was_not_asked(workplace: Path, told: Told) -> None:
    printed = told(f"{UNTIED_ALONE} structure/attention --first --json r.json --junit r.xml", 1).out
    content = envelope.read(workplace / "r.json")
    asked = [p["id"] for p in content["properties"] if p["verdict"] != "not offered"]
    assert "gradient/attention/plain" in asked
    left = content["counts"]["not_asked"]
    assert left == len(content["unasked"]) > 0
    assert content["counts"]["applicable"] == len(content["properties"]) + left
    assert f"{left} not asked, as the run ended early" in printed
    assert f"1 of {len(asked)} violated ({left} not asked): " in printed
    suite = ElementTree.parse(workplace / "r.xml").getroot()[0]  # noqa: S314
    assert suite.get("tests") == str(len(suite.findall("testcase"))) == str(content["counts"]["applicable"])
    assert len(suite.findall(".//skipped[@type='not asked']")) == left


@pytest.mark.slow
@pytest.mark.usefixtures("workplace")
def test_a_terse_run_is_a_line_for_each_verdict_and_one_of_json(told: Told) -> None:
    printed = told(f"{UNTIED_ALONE} --terse", 1)
    line, last = printed.out.splitlines()
    assert line.startswith("violated gradient/attention/plain [")
    summary = json.loads(last)
    assert (summary["exit_code"], summary["counts"]["violated"]) == (1, 1)
    assert summary["diagnosis"]["causes"][0]["properties"] == ["gradient/attention/plain"]
    assert not printed.err


def test_a_run_with_known_violations_takes_more_time_to_make_cases_small(
    workplace: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "known.toml").touch()
    spent: list[float] = []

    def run(name: str, _: object, effort: Effort, *__: object, **___: object) -> Iterator[RunFinished]:
        spent.append(effort.explaining)
        yield RunFinished(name, [], 0.0)

    monkeypatch.setattr(isolation, "run", run)
    for known in ("", "--known known.toml"):
        told(f"{UNTIED_ALONE} {known}", 2)  # nothing was tested
    assert spent[1] > 5 * spent[0]


@pytest.mark.slow
def test_a_terse_run_that_is_terminated_keeps_its_verdicts(workplace: Path) -> None:
    words = ("cemverify", "check", "untied:mine", "--terse", "--workers", "1", "--json", "r.json")
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    pipe = subprocess.PIPE
    run = subprocess.Popen(
        [sys.executable, "-m", *words], env=environment, stdout=pipe, stderr=pipe, text=True, preexec_fn=heed
    )
    assert run.stdout
    first = run.stdout.readline()  # while the command still runs
    run.terminate()
    rest, errors = run.communicate()
    *lines, last = [first, *rest.splitlines()]
    told, written = json.loads(last), json.loads((workplace / "r.json").read_text())
    assert (run.returncode, told["exit_code"], told["interrupted"], written["interrupted"]) == (143, 143, True, True)
    assert told["counts"] == written["counts"]
    assert len(lines) == told["counts"]["run"] < told["counts"]["run"] + told["counts"]["not_asked"]
    assert errors.splitlines()[-1] == "error: terminated; written before that: r.json"


@pytest.mark.slow
def test_a_file_that_cannot_be_written_costs_neither_the_verdict_nor_other_files(
    workplace: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, _: str) -> None:
        raise envelope.ResultError(f"cannot write {path}")

    check = f"{UNTIED_ALONE} tying/attention/multi-head-attention --json r.json"
    accept = "--known k.toml --update-known --reason ours"
    (workplace / "my found" / "gradient-attention-plain.npz").mkdir(parents=True)
    printed = told(f"{check} {accept} --save-counterexamples 'my found'", 2)
    assert "2 run: 0 hold, 2 violated (2 known)" in printed.out
    lost = "my found/gradient-attention-plain.npz: it is a folder; give a file name"
    assert printed.err.endswith(f"error: cannot write {lost}\n")
    saved = "my found/tying-attention-multi-head-attention.json"
    assert f"counterexample saved: cemverify replay '{saved}'\n" in printed.err
    assert all((workplace / name).exists() for name in ("r.json", "k.toml", saved))

    (workplace / "k.toml").unlink()
    (workplace / "r.json").unlink()
    monkeypatch.setattr("cemverify.conformance.gate.accepting.write_text", refuse)
    printed = told(f"{check} {accept}", 2)
    assert "2 of 2 violated" in printed.out
    assert printed.err.endswith("error: cannot write k.toml\n")
    printed = told(f"{check} --junit /dev/full --markdown r.md", 2)
    assert printed.err.endswith("error: cannot write /dev/full: No space left on device\n")
    assert Path("r.md").exists()
    assert not any("known" in p for p in envelope.read(workplace / "r.json")["properties"])


@pytest.mark.slow
def test_a_check_within_a_moment_begins_little_and_tells_what_that_is_worth(workplace: Path, told: Told) -> None:
    printed = told("cemverify check tied:mine --within 0.001 --examples 5 --json r.json").flat
    content = envelope.read(workplace / "r.json")
    counts, worth = content["counts"], content["worth"]
    assert 1 <= counts["run"] < counts["not_asked"]
    assert 0 < worth["killed"] < worth["of"]
    assert f"catch at least {worth['killed']} of the {worth['of']} known faults" in printed


@pytest.mark.slow
def test_accepted_violations_pass_and_end_no_run_until_they_expire(
    workplace: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = f"{UNTIED_ALONE} structure/attention/causality --known k.toml"
    printed = told(f"{check} --update-known --reason ours --json r.json").out
    assert "1 violated (1 known)" in printed
    content = envelope.read(workplace / "r.json")
    assert [e["standing"] for e in content["known"]["entries"]] == ["known"]
    assert [p.get("known") for p in content["properties"]] == ["ours", None]
    assert "2 run: 1 hold, 1 violated (1 known)" in told(f"{check} --first").out

    # half a year later nothing is worse, but the entry has expired
    monkeypatch.setattr(known_violations, "today", lambda: datetime.now(UTC).date() + timedelta(days=180))
    printed = told(f"{check} --baseline r.json --json s.json --junit s.xml --markdown s.md", 1).out
    assert "delete the entry on line 4" in printed
    assert "compared with r.json: nothing got worse" in printed
    envelope.read(workplace / "s.json")
    suites = ElementTree.parse(workplace / "s.xml").getroot()  # noqa: S314
    assert [suite.get("failures") for suite in suites] == ["1", "1", "0"]
    assert re.search(r"^\| +4 \| gradient/attention/plain", (workplace / "s.md").read_text(), re.MULTILINE)


def test_list_shows_every_family_property_and_feature(told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    for width in (80, None):
        monkeypatch.setattr("cemverify.commands.list.columns", lambda *_, width=width: width)
        families = told("cemverify list").out
        assert all(re.search(rf"^ *{p.family} ", families, re.MULTILINE) for p in catalogue())
        assert width is None or max(map(len, families.splitlines())) <= width
    printed = told("cemverify list '*'").out
    assert all(p.id in printed for p in catalogue())
    assert "preconditioner:low-rank-printed" in told("cemverify list --features").out
    told("cemverify list --features --json l.json", 2)
