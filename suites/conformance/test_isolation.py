"""A hostile implementation gets a typed verdict for the property under way, and the run goes on."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from cemverify.conformance.contract import LoadError
from cemverify.conformance.engine import Effort, RunFinished
from cemverify.conformance.isolation import run
from cemverify.conformance.properties import select
from cemverify.conformance.verdicts import Record, Verdict

pytestmark = pytest.mark.slow

ONE_OF_EACH = select(["gradient/attention/plain", "gradient/mlp/silu"])


def records(name: str, effort: Effort) -> dict[str, Record]:
    for event in run(f"suites.conformance.hostile:{name}", ONE_OF_EACH, effort):
        if isinstance(event, RunFinished):
            return {record.id: record for record in event.records}
    raise AssertionError("the run did not finish")


@pytest.mark.parametrize(("name", "cause"), [("hangs", "hung"), ("exits", "crashed"), ("aborts", "crashed"),
                                             ("leaves", "raised")])  # fmt: skip
def test_the_run_survives_an_implementation_that(name: str, cause: str) -> None:
    found = records(name, Effort(examples=4, timeout=2.0))
    attention = found["gradient/attention/plain"]
    assert (attention.verdict, attention.cause) == (Verdict.VIOLATED, cause)
    assert found["gradient/mlp/silu"].verdict == Verdict.HOLDS


def test_a_run_with_several_workers_has_a_record_of_every_property_that_a_crash_met() -> None:
    asked = select(["gradient/attention", "recursion/attention"])
    events = list(run("suites.conformance.hostile:exits", asked, Effort(examples=4), workers=3))
    assert isinstance(events[-1], RunFinished)
    assert {r.id for r in events[-1].records} == {p.id for p in asked}
    assert {r.cause for r in events[-1].records if "stated-energy" not in r.id} == {"crashed"}


def test_what_an_implementation_starts_ends_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CEMVERIFY_TEST_CHILD", str(tmp_path / "pid"))
    records("starts_a_child", Effort(examples=4, timeout=2.0))
    child = int((tmp_path / "pid").read_text())
    for _ in range(50):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail(f"process {child} is still there")


def test_what_an_implementation_prints_stays_out_of_the_table(capfd: pytest.CaptureFixture[str]) -> None:
    assert records("prints", Effort(examples=4))["gradient/attention/plain"].verdict == Verdict.HOLDS
    assert "noise" not in capfd.readouterr().out


def test_an_exception_of_any_text_is_reported() -> None:
    record = records("raises", Effort(examples=4))["gradient/attention/plain"]
    assert (record.verdict, record.cause) == (Verdict.VIOLATED, "raised")
    assert record.reason is not None
    assert "ταυ" in record.reason


def test_an_isolated_run_says_what_a_run_in_this_process_says() -> None:
    from cemverify import check_implementation, reference

    here = check_implementation(reference, properties=["gradient/mlp/silu"], examples=10)
    there = check_implementation("cemverify:reference", properties=["gradient/mlp/silu"], examples=10)
    assert [(r.id, r.verdict, r.margin, r.examples) for r in here] == [
        (r.id, r.verdict, r.margin, r.examples) for r in there
    ]


def test_an_installed_entry_point_is_an_implementation_by_its_name() -> None:
    events = list(run("reference", select(["rejection/mlp/zero-steps"]), Effort(examples=4)))
    assert isinstance(events[-1], RunFinished)
    assert [r.verdict for r in events[-1].records] == [Verdict.HOLDS]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nosuch:thing", "no module 'nosuch'"),
        ("suites.conformance.hostile:nothing", "no attribute 'nothing'"),
        ("suites.conformance.hostile:not_an_implementation", "not an implementation"),
        ("suites.conformance.crashes_on_import:anything", "ended the interpreter (exit code 9)"),
        ("nosuch", "give module:attribute"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_a_sentence(name: str, words: str) -> None:
    with pytest.raises(LoadError) as raised:
        list(run(name, ONE_OF_EACH, Effort()))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)
