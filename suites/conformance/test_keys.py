"""No verdict depends on a sentence: with nonsense in place of every text, the same is found and accepted."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from cemverify.conformance.counterexamples.demands import demands_of
from cemverify.conformance.gate.accepting import Acceptance, updated
from cemverify.conformance.gate.known_violations import EntryOutcome, EntryStanding, parse_known, settle
from cemverify.conformance.implementations.faults import Fault
from cemverify.conformance.judging.diagnosis import diagnose
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.run import run
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.oracle.evidence import Claim, Compared, Comparison, Key, key_of
from cemverify.conformance.properties import by_id
from cemverify.power.mutants import mutants

TODAY, ACCEPTED = date(2027, 1, 1), Acceptance("a ticket", date(2027, 2, 1))
# one fault of each kind that programs distinguish
FAULTS = {
    "rejection/attention/integer-input": "bad input",
    "contract/attention/inputs-unchanged": "an edited argument",
    "contract/attention/determinism": "two answers",
    "contract/attention/shape-and-dtype": "another dtype",
    "contract/attention/settings-unchanged": "a setting",
    "precision/attention/float32": "a norm",
    "training/attention/plain": "a derivative",
    "training/layer/parameters": "an untied parameter",
    "descent/layer/whole-step": "an energy",
    "gradient/attention/plain": "a formula",
    "extremes/layer/huge-lagrangian": "numbers out of range, of a further function",
}


def told(run_: RunFinished) -> tuple[Any, ...]:
    """What a program reads from a run: all except its sentences."""
    record, diagnosis = run_.records[0], diagnose(run_)
    saved = None if record.saved is None else demands_of(record, record.saved)
    causes = () if diagnosis is None else [(c.is_recognised, c.may_be_mended, c.place) for c in diagnosis.causes]
    return record.id, record.verdict, record.key, record.part, record.margin, record.is_fault, saved, causes


@pytest.mark.parametrize("id_", FAULTS, ids=list(FAULTS.values()))
def test_nonsense_for_every_text_changes_no_verdict_nor_more(id_: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mutant = next(m for m in mutants() if m.property == id_)
    usual = judged(mutant.subject(), id_)
    monkeypatch.setattr(Comparison, "__post_init__", nonsense(Comparison.__post_init__))
    monkeypatch.setattr(Fault, "__str__", lambda _: "Twas brillig, and the slithy toves")
    other = judged(mutant.subject(), id_, claim="Colourless green ideas sleep furiously.")
    assert (record := other.records[0]).cause != usual.records[0].cause or record.is_fault
    assert told(other) == told(usual)
    assert mutant.is_killed(record)
    file = updated("", "known.toml", "m:m", usual.records, ACCEPTED, TODAY)
    _, outcome = settle("m:m", other.records, parse_known(file, "known.toml"), "known.toml", TODAY)
    assert [o.standing for o in outcome.outcomes] == [EntryStanding.ACCEPTED]


def judged(subject: Any, id_: str, claim: str | None = None) -> RunFinished:
    """The final event of a run of one property whose claim is replaced."""
    property_ = by_id(id_) if claim is None else replace(by_id(id_), claim=claim)
    return next(e for e in run(subject, "m:m", [property_], Effort(examples=30)) if isinstance(e, RunFinished))


def nonsense(post_init: Any) -> Any:
    """Replaces the text of every comparison, but keeps its key."""

    def instead(self: Comparison) -> None:
        object.__setattr__(self, "claim", Claim("furiously sleep ideas green colourless", key_of(self.claim)))
        post_init(self)

    return instead


def test_a_key_survives_the_way_between_processes() -> None:
    claim = pickle.loads(pickle.dumps(Compared.KEPT("W_Q after the call", "W_Q")))  # noqa: S301  (our own)
    assert (claim, claim.key) == ("W_Q after the call", Key("kept", "W_Q"))


def test_another_wrong_part_is_new_though_the_same_identity_fails() -> None:
    made = {m.id: m.subject for m in mutants()}
    mask = judged(made["own-token-hidden"](), "gradient/attention/plain").records
    temperature = judged(made["squared-temperature"](), "gradient/attention/plain").records
    assert mask[0].key == temperature[0].key
    listed = updated("", "f", "m:m", mask, ACCEPTED, TODAY)

    def outcome(records: Sequence[Record], text: str = listed) -> EntryOutcome:
        return settle("m:m", records, parse_known(text, "f"), "f", TODAY)[1].outcomes[0]

    assert outcome(temperature).standing == EntryStanding.OTHER_CAUSE
    assert outcome(temperature).sentence.endswith("that line 4 accepts: temperature, not mask")
    unnamed = [replace(temperature[0], part=None)], listed.replace('part = "mask"\n', "")
    known = [(mask, listed), (unnamed[0], listed), (temperature, unnamed[1])]
    known.append((temperature, updated(listed, "f", "m:m", temperature, ACCEPTED, TODAY)))
    assert {outcome(*each).standing for each in known} == {EntryStanding.ACCEPTED}
