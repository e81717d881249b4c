"""The claims ledger: every verdict follows from its arguments' findings, and changes when the statement does."""

from __future__ import annotations

import os
import pkgutil
import re
import sys
import threading
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from cemverify.claims import Claim, ClaimVerdict, JudgedClaim, judge_claim, ledger, mathematics, pages
from cemverify.claims.arguments import Figures, Instance, Lemma, Properties, Sample, Search, Statement, working
from cemverify.claims.base import ARXIV, DRAFT
from cemverify.claims.retired import RETIRED
from cemverify.commands import claims as command
from cemverify.conformance.properties import by_id
from cemverify.results import envelope
from suites.claims.turned import TURNED, asks_the_statement, turned_round, without_condition
from suites.kit.commands import Told

LEDGER = {claim.id: claim for claim in ledger()}  # `find_claim` reads all results again
IDS = [claim.id for claim in mathematics()]
DECIDABLE = [claim.id for claim in mathematics() if any(map(asks_the_statement, claim.arguments))]
OURS = [claim.id for claim in mathematics() if claim.kind == "ours"]
DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "claims.md"
# the claims that the findings cite, in their order
FINDINGS = re.findall(r"\(\.\./claims\.md#(\d[^)]*)\)", (DOCS / "explanation" / "findings.md").read_text())
HELD = {ClaimVerdict.HOLDS, ClaimVerdict.CONDITIONAL}

# measured like the paper's experiments, but not reported in the paper
OUR_CONTROLS = {"18-depth-two-length", "18-equal-operations", "18-fixed-memory", "18-reuse-of-cem"}


def briefly(claim: Claim) -> Claim:
    """The same claim with shorter searches, which usually find the same."""
    return replace(claim, arguments=[_brief(argument) for argument in claim.arguments])


def _brief(argument: object) -> Any:
    if isinstance(argument, Search):
        return replace(argument, examples=min(argument.examples, 20))
    if isinstance(argument, Properties):
        return replace(argument, examples=1)  # the catalogue's tests use more examples
    return argument


@pytest.mark.slow
@pytest.mark.parametrize("id_", DECIDABLE)
def test_a_verdict_follows_from_the_statement_and_changes_with_it(id_: str, pytestconfig: pytest.Config) -> None:
    claim, thorough = LEDGER[id_], pytestconfig.getoption("--thorough")
    other = (lambda claim: claim) if thorough else briefly
    judged = judge_claim(other(claim))
    on_the_page = stands_on_the_page(judged)
    if not (on_the_page or thorough):  # some are decided by a case that only a long search finds
        judged = judge_claim(claim)
        on_the_page = stands_on_the_page(judged)
    assert on_the_page, "regenerate it: cemverify claims --markdown docs/claims.md"
    assert [f.summary for f in judged.findings if f.side == "neither"] == []
    assert bool(claim.condition) == (claim.within is not None) == (judged.verdict == ClaimVerdict.CONDITIONAL)

    within = [f for f in judged.findings if f.within]
    if any(f.side == "against" for f in within):  # then no argument covers all cases
        assert [f.summary for f in within if f.general and f.side == "for"] == []

    turned = judge_claim(other(turned_round(claim)))
    assert turned.verdict not in (ClaimVerdict.UNDECIDED, judged.verdict)
    if not claim.condition:
        assert (turned.verdict in HELD) != (judged.verdict in HELD)
    else:
        assert judge_claim(other(without_condition(claim))).verdict == ClaimVerdict.REFUTED


@pytest.mark.parametrize("id_", [id_ for id_ in LEDGER if id_ not in DECIDABLE])
def test_what_needs_no_gathering_stands_on_the_page_as_it_is_now(id_: str) -> None:
    assert stands_on_the_page(judge_claim(LEDGER[id_])), "regenerate: cemverify claims --markdown docs/claims.md"


def stands_on_the_page(judged: JudgedClaim) -> bool:
    """Asserts that a claim is under its heading, word for word."""
    text, section = PAGE.read_text(), pages.as_section(judged)
    heading = next(heading for heading, _, chosen in pages.SECTIONS if chosen(judged))
    before, found_there, _ = text.partition(section)
    return bool(found_there) and before.rpartition("\n## ")[2].startswith(f"{heading}\n")


@pytest.mark.parametrize("claim", LEDGER.values(), ids=LEDGER)
def test_a_claim_is_complete(claim: Claim) -> None:
    assert claim.statement.endswith(".")
    assert claim.finding
    assert claim.advice
    assert not claim.advice.endswith(".")
    assert claim.source.section
    assert (claim.kind == "ours" or claim.id in OUR_CONTROLS) == (claim.source.version == "")
    if claim.source.wording in ("sentence", "words", "formula") and claim.source.version:
        assert claim.source.quote
    if claim.id in DECIDABLE:
        assert claim.id in TURNED
    elif claim.kind != "training":  # then its other text only explains why
        assert all(isinstance(a, Lemma) for a in claim.arguments)
        assert judge_claim(claim).verdict == ClaimVerdict.UNTELLABLE


def test_every_claim_stands_once_here_and_on_the_page_and_findings_and_our_lemmas_say_what_they_rest_on() -> None:
    there = re.findall(r'^### <a id="([^"]+)">', PAGE.read_text(), re.MULTILINE)
    assert sorted(there) == sorted(LEDGER)
    for words in ([c.id for c in ledger()], [c.statement for c in ledger()], [c.finding for c in mathematics()]):
        assert [w for w, n in Counter(words).items() if n > 1] == []
    assert len(set(FINDINGS)) == 10
    assert set(FINDINGS) <= set(IDS)
    assert {claim.id for claim in mathematics() if claim.rests} == set(OURS)


@pytest.mark.parametrize("id_", OURS)
def test_what_rests_on_a_lemma_is_there(id_: str) -> None:
    rests = LEDGER[id_].rests
    for name in rests:
        if name.startswith("finding "):
            assert 1 <= int(name.removeprefix("finding ")) <= len(FINDINGS)
        else:
            assert by_id(name) if "/" in name else pkgutil.resolve_name(name)
    assert id_ not in FINDINGS or f"finding {FINDINGS.index(id_) + 1}" in rests


def test_a_retired_claim_is_to_be_read_where_it_says(told: Told) -> None:
    assert not RETIRED.keys() & LEDGER.keys()
    for where in set(RETIRED.values()):
        if where.startswith("the claim "):
            assert where.removeprefix("the claim ") in LEDGER
        else:
            section = where.removeprefix("§").partition(" ")[0]
            assert f"\n## {section}. " in (DOCS / "mathematics.md").read_text()
    words = "the claim '1-scale' is retired: it is judged no more; read §1 of docs/mathematics.md"
    assert words in told("cemverify claims 1-scale", 2).err


def _below(limit: int) -> Statement:
    return Statement(lambda n: working(f"{n} < {limit}", comes_out=n < limit))


def test_an_argument_speaks_for_or_against_an_example_refutes_at_most_and_few_cases_decide_nothing() -> None:
    samples = Sample("all", lambda: range(100)), Search("all", st.integers(0, 99))
    for argument in (Instance("ten", 10), Figures("ten", 10), *samples):
        assert argument.gather(_below(100)).side == "for"
        assert argument.gather(_below(5)).side == "against"
    claim = LEDGER["7-sign"]
    alone = replace(claim, arguments=(Instance("beta = 0", (0, 0, 0, 0)),))
    assert judge_claim(alone).verdict == ClaimVerdict.UNDECIDED
    assert judge_claim(replace(claim, arguments=(Instance("ones", (1, 1, 1, 1)),))).verdict == ClaimVerdict.REFUTED
    assert Sample("three", lambda: range(3)).gather(_below(100)).side == "neither"
    rare = Statement(lambda n: working(comes_out=True), within=lambda n: n == 0)
    assert Search("zero", st.integers(0, 10**9), examples=30).gather(rare).side == "neither"
    broken = Lemma("1 = 2", lambda: working("1 = 2", comes_out=False))
    assert broken.gather(_below(1)).side == "neither"


def test_one_claim_is_printed_with_the_command_to_run_it_again_and_written(tmp_path: Path, told: Told) -> None:
    printed = told(f"cemverify claims 6-softplus-diagonal --json {tmp_path / 'c.json'}").out
    words = ["statement:", "OpenReview draft", "`P = diag(softplus(d))", "finding:", "for your implementation:"]
    words += ("d = 0, U = 1, V = -1", "again: cemverify claims 6-softplus-diagonal")
    assert [each for each in words if each not in printed] == []
    (claim,) = envelope.read(tmp_path / "c.json")["claims"]
    assert (claim["verdict"], claim["kind"], claim["section"]) == ("refuted", "paper", "Eq. 12, 13; App. C.4")


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux copies a process")
def test_copies_of_the_process_find_what_it_finds_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    few = [LEDGER[id_] for id_ in ("17-batch-size", "6-softplus-diagonal", "17-gpu-hours")]
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # threads of pytest's plugins do not matter here
    judged_in: list[int] = []

    def noted(claim: Claim) -> JudgedClaim:
        judged_in.append(os.getpid())
        return judge_claim(claim)

    monkeypatch.setattr("cemverify.claims.judge_claim", noted)
    together, alone = list(command._judged(few, 2)), list(command._judged(few, 1))
    assert [j.describe() for j in together] == [j.describe() for j in alone]
    assert len(judged_in) == len(few), "the copies judged the others"


# the version, and the environment variable that names a file with its text, which we may not distribute
TEXTS = {DRAFT: "CEMVERIFY_DRAFT", ARXIV: "CEMVERIFY_ABSTRACT"}


def as_words(text: str) -> str:
    """Normalises white space to one blank, and drops the dollar signs around formulas."""
    return " ".join(text.replace("$", "").split())


@pytest.mark.parametrize("version", TEXTS)
def test_every_quote_stands_in_its_text(version: str) -> None:
    """CEMVERIFY_DRAFT=draft.txt CEMVERIFY_ABSTRACT=abstract.txt python -m pytest suites/claims -k quote"""
    file = os.environ.get(TEXTS[version])
    if file is None:
        pytest.skip(f"{TEXTS[version]} does not name a file with the text of: {version}")
    there = as_words(Path(file).read_text())
    sources = {id_: claim.source for id_, claim in LEDGER.items() if claim.source.version == version}
    quotes = {id_: as_words(of.quote) for id_, of in sources.items() if of.wording in ("sentence", "words")}
    assert [id_ for id_, quote in quotes.items() if quote not in there] == []
