"""The claims ledger: every verdict follows from its evidence, and would not survive the opposite."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from importlib import resources
from pathlib import Path

import jsonschema
import pytest

from cemverify.claims import Judged, Standing, find_claim, judge, ledger, pages
from cemverify.claims.evidence import Counterexample, Derivation, Finding, Properties, Search
from cemverify.cli import main
from cemverify.conformance.properties import catalogue

pytestmark = pytest.mark.slow

IDS = [claim.id for claim in ledger()]


@cache
def judged(id_: str) -> Judged:
    return judge(find_claim(id_))


@pytest.mark.parametrize("id_", IDS)
def test_the_evidence_of_every_claim_stands(id_: str) -> None:
    assert [f for f in judged(id_).findings if not f.stands] == []


@pytest.mark.parametrize("id_", IDS)
def test_a_verdict_does_not_survive_the_opposite_of_any_piece_of_its_evidence(id_: str) -> None:
    j = judged(id_)
    for i, finding in enumerate(j.findings):
        opposite = list(j.findings)
        opposite[i] = replace(finding, stands=not finding.stands)
        assert Judged(j.claim, opposite).verdict == Standing.UNDECIDED != j.verdict
    if j.verdict == Standing.HOLDS:
        against = Finding("against", stands=True, summary="a counterexample")
        assert Judged(j.claim, [*j.findings, against]).verdict == Standing.CONDITIONAL


@pytest.mark.parametrize("id_", IDS)
def test_a_claim_is_complete(id_: str) -> None:
    claim, verdict = find_claim(id_), judged(id_).verdict
    assert claim.source
    assert claim.statement.endswith(".")
    assert claim.proof
    assert bool(claim.condition) == (verdict == Standing.CONDITIONAL)
    assert bool(claim.study) == (verdict == Standing.NOT_MEASURED)


def test_there_are_at_least_forty_claims_with_names_of_their_own() -> None:
    assert len(IDS) == len(set(IDS)) >= 40


def test_every_refuted_claim_has_an_exact_counterexample_with_its_working() -> None:
    for claim in ledger():
        if judged(claim.id).verdict in (Standing.REFUTED, Standing.CONDITIONAL):
            shown = [e for e in claim.evidence if isinstance(e, Counterexample)]
            assert shown, claim.id
            assert all(e.gather().lines for e in shown), claim.id


def test_properties_that_claims_rest_on_exist() -> None:
    known = {p.id for p in catalogue()}
    for claim in ledger():
        for e in claim.evidence:
            if isinstance(e, Properties):
                assert set(e.ids) <= known, claim.id


def test_evidence_can_fail() -> None:
    from hypothesis import strategies as st

    from cemverify.claims.evidence import working

    assert not Derivation("1 = 2", lambda: working("1 = 2", comes_out=False)).gather().stands
    assert not Counterexample("true", lambda: working("1 = 1", comes_out=True)).gather().stands
    nothing = Search("an integer that is not one", st.integers(0, 3), lambda n: n > 3, float, largest=3, examples=50)
    assert not nothing.gather().stands
    too_large = Search("a large one", st.integers(0, 9), lambda n: n > 5, float, largest=3, examples=500)
    assert not too_large.gather().stands


def test_an_unknown_claim_is_refused_in_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "6-nothing"]) == 2
    told = capsys.readouterr().err
    assert "unknown claim '6-nothing'; choose from 6-softplus-diagonal" in told
    assert told.count("\n") == 1


def test_one_claim_is_printed_in_full_with_the_command_to_run_it_again(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "5-per-head"]) == 0
    printed = capsys.readouterr().out
    for words in ("statement:", "proof sketch:", "condition:", "W_Q = (2, -1)", "again: cemverify claims 5-per-head"):
        assert words in printed


def test_the_result_file_follows_the_schema(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["claims", "6-softplus-diagonal", "--json", str(tmp_path / "c.json")]) == 0
    capsys.readouterr()
    content = json.loads((tmp_path / "c.json").read_text())
    jsonschema.validate(content, json.loads((resources.files("cemverify") / "result.schema.json").read_text()))
    assert [c["verdict"] for c in content["claims"]] == ["refuted"]


@pytest.mark.xdist_group("whole ledger")
def test_the_page_in_the_documentation_is_current() -> None:
    page = Path(__file__).parents[2] / "docs" / "claims.md"
    now = pages.as_markdown([judged(id_) for id_ in IDS])
    assert page.read_text() == now, "regenerate it: cemverify claims --markdown docs/claims.md"
