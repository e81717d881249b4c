"""An implementation with bad habits gets the verdict that its answers deserve, and the run goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import select
from cemverify.conformance.workers.isolation import run

pytestmark = pytest.mark.slow

ATTENTION = select(["gradient/attention/plain"])
BOTH = select(["gradient/attention/plain", "gradient/mlp/silu"])
QUICKLY = Effort(examples=3, shrink=False, memory=700, timeout=20.0)

# what an answer is worth that came with this; None: it holds
VERDICTS: dict[str, str | None] = {
    "assumes_otherwise": "raised",
    "rejects": "raised",
    "stops_the_test": "raised",
    "discards": "raised",
    "skips": "raised",
    "skips_as_pytest_does": "raised",
    "stops_iteration": "raised",
    "raises_a_group": "raised",
    "raises_a_chain": "raised",
    "raises_with_a_broken_class": "raised",
    "overwrites_its_answer_later": None,
    "falls_when_collected": None,
    "exits_in_a_thread": None,
    "fails_in_a_thread": None,
    "spins_in_a_thread": None,
    "leaves_a_pool": None,
    "leaves_a_loop": None,
    "leaves_thirty_children": None,
    "leaves_a_chatterer": None,
    "listens": None,
    "refuses_to_end": None,
    "refuses_to_end_and_hangs": "hung",
    "handles_signals_badly": None,
    "loses_its_streams": None,
    "breaks_its_hooks": None,
    "goes_elsewhere_in_time": None,
    "switches_torch": None,
    "is_meagre": None,
    "logs": None,
    "wants_to_spawn": None,
    "recurs_beyond_the_stack": "crashed",
    "replaces_random": "tampered",
    "replaces_json": "crashed",  # answers travel as JSON
    "replaces_subtraction": None,
    "removes_len": "crashed",
    "ends_later": "crashed",
}


@pytest.mark.parametrize("name", VERDICTS)
def test_a_bad_habit_costs_what_it_deserves_and_the_run_goes_on(
    name: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    effort = QUICKLY if VERDICTS[name] != "hung" else Effort(examples=3, shrink=False, memory=700, timeout=2.0)
    found: dict[str, Record] = {}
    # where something is violated, another property shows that the run goes on
    for event in run(f"suites.conformance.habits:{name}", BOTH if VERDICTS[name] else ATTENTION, effort):
        if isinstance(event, RunFinished):
            found = {record.id: record for record in event.records}
    attention = found.pop("gradient/attention/plain")
    cause = VERDICTS[name]
    due = (Verdict.HOLDS, None) if cause is None else (Verdict.VIOLATED, cause)
    assert (attention.verdict, attention.cause) == due, attention.reason
    assert attention.reason is None or attention.reason.isprintable()
    assert all(record.verdict == Verdict.HOLDS for record in found.values())
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.glob("cemverify-*"))
