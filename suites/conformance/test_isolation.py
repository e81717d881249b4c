"""A hostile implementation gets a typed verdict for the property under way, and the run goes on."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path

import pytest

from cemverify.cli import main
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property, select
from cemverify.conformance.workers import isolation, nursery
from cemverify.conformance.workers.giving_up import IN_A_ROW, IN_ALL, LostWorkers
from cemverify.conformance.workers.isolation import run
from cemverify.conformance.workers.limits import LEAST_MEMORY, descendants, limits_memory
from cemverify.processes import forkserver
from suites.conformance import asking
from suites.conformance.asking import IMPATIENTLY, ONE_OF_EACH, QUICKLY

pytestmark = pytest.mark.slow


def records(name: str, effort: Effort = QUICKLY, properties: tuple[Property, ...] = ONE_OF_EACH) -> dict[str, Record]:
    return asking.records(f"suites.conformance.hostile:{name}", effort, properties)


@pytest.mark.parametrize("name", ["hangs", "hangs_in_c", "deadlocks", "floods", "stops_itself", "raises_without_end",
                                  "returns_the_slow"])  # fmt: skip
def test_a_call_that_does_not_return_is_cut_short(name: str) -> None:
    found = records(name, IMPATIENTLY)
    attention = found["gradient/attention/plain"]
    assert (attention.verdict, attention.cause) == (Verdict.VIOLATED, "hung")
    assert attention.reason == "a call did not return within 2 seconds (--timeout allows more)"
    assert found["gradient/mlp/silu"].verdict == Verdict.HOLDS


@pytest.mark.parametrize(
    ("name", "cause", "words"),
    [
        ("exits", "crashed", "it ended the interpreter (exit code 7)"),
        ("aborts", "crashed", "it ended the interpreter (signal 6)"),
        ("segfaults", "crashed", "it ended the interpreter (signal 11)"),
        ("closes_files", "crashed", "it ended the interpreter"),
        ("exits_quietly", "crashed", "it ended the interpreter (exit code 0)"),
        ("raises_exit_quietly", "raised", "it raised SystemExit"),
        ("forges_a_tensor", "update = -eta P grad energy, T times", "got "),
        ("forges_an_array", "update = -eta P grad energy, T times", "got "),
        ("answers_lazily", "update = -eta P grad energy, T times", "got "),
        ("claims_a_class", "update = -eta P grad energy, T times", "got "),
        ("sends_records", "update = -eta P grad energy, T times", "got "),
        ("traces_and_is_wrong", "update = -eta P grad energy, T times", "got "),
        ("leaves_a_mode", "tampered", "by a TorchFunctionMode"),
        ("hogs_memory", "out of memory", "MemoryError"),
        ("leaks_memory", "out of memory", "memory"),
        ("hogs_tensors", "out of memory", "can't allocate memory"),
        ("returns_a_tebibyte", "wrong shape", "it returned shape (137438953472,)"),
        ("raises_unicode", "raised", "it raised RuntimeError: ταυ → ∞"),
        ("raises_at_length", "raised", "it raised RuntimeError: long long"),
        ("raises_the_unspeakable", "raised", "its message cannot be read"),
        ("raises_base_exception", "raised", "it raised _Base"),
        ("raises_system_exit", "raised", "it raised SystemExit: 0"),
        ("raises_interrupt", "raised", "it raised KeyboardInterrupt"),
        ("raises_generator_exit", "raised", "it raised GeneratorExit"),
        ("imports_lazily", "raised", "No module named 'cemverify_has_no_such_module'"),
        ("recurs", "raised", "RecursionError"),
        ("returns_nan", "not finite", "NaN or infinite"),
        ("returns_infinity", "not finite", "NaN or infinite"),
        ("returns_another_shape", "wrong shape", "it returned shape"),
        ("returns_complex", "not an array", "torch.complex128"),
        ("returns_meta", "not an array", "on meta"),
        ("returns_sparse", "not an array", "torch.sparse_coo"),
        ("returns_nested", "not an array", "cannot be read as an array"),
        ("returns_the_stubborn", "not an array", "cannot be read as an array: RuntimeError: no"),
        ("returns_words", "not an array", "it returned a str"),
        ("returns_its_input", "update = -eta P grad energy, T times", "got "),
        ("returns_a_liar", "update = -eta P grad energy, T times", "got "),
        ("edits_the_configuration", "update = -eta P grad energy, T times", "got "),
        ("dithers", "update = -eta P grad energy, T times", "got "),
        ("replaces_softmax", "tampered", "it replaced functions that the whole process uses: torch.softmax"),
        ("replaces_the_clock", "tampered", "time.monotonic"),
        ("replaces_sum", "tampered", "builtins.sum"),
        ("stays_in_inference_mode", "tampered", "torch.inference_mode"),
    ],
)
def test_misbehaviour_is_a_violation_with_its_cause_and_the_run_goes_on(name: str, cause: str, words: str) -> None:
    found = records(name)
    attention = found["gradient/attention/plain"]
    assert (attention.verdict, attention.cause) == (Verdict.VIOLATED, cause), attention.reason
    assert attention.reason is not None
    assert words in attention.reason
    assert len(attention.reason) < 1000
    assert attention.reason.isprintable()
    assert found["gradient/mlp/silu"].verdict == Verdict.HOLDS


@pytest.mark.parametrize("name", ["prints", "reseeds", "switches_defaults", "tightens_settings", "moves_house",
                                  "sets_an_alarm", "leaves_hooks", "leaves_threads", "writes_a_file",
                                  "forks", "traces"])  # fmt: skip
def test_a_right_answer_stays_right_whatever_else_the_call_did_to_the_process(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CEMVERIFY_TEST_CHILD", str(tmp_path / "written"))
    assert {r.verdict for r in records(name).values()} == {Verdict.HOLDS}
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name",
    [
        *("writes_records", "answers_for_itself", "answers_stale", "rewrites_records", "loosens_comparisons"),
        *("writes_garbage", "writes_the_beginning_of_an_answer", "replaces_json", "replaces_pickle"),
        *("replaces_sockets", "replaces_copies"),
    ],
)
def test_a_wrong_answer_never_holds_whatever_its_process_writes_or_replaces(name: str) -> None:
    found = records(name, replace(IMPATIENTLY, timeout=4.0))
    assert found["gradient/attention/plain"].verdict == Verdict.VIOLATED, found["gradient/attention/plain"].reason
    assert found["gradient/mlp/silu"].verdict == Verdict.HOLDS


@pytest.mark.parametrize(
    "name",
    [
        *("kills_its_parent", "stops_its_parent", "stops_judge_and_server"),
        *("leaves_a_grandchild_that_stops_the_judge", "interrupts_its_judge", "stops_its_judges_main_thread"),
    ],
)
def test_whom_an_implementation_stops_or_kills_delays_the_run_and_never_turns_it_green(name: str) -> None:
    started = time.monotonic()
    found = records(name, replace(IMPATIENTLY, timeout=6.0))
    attention = found["gradient/attention/plain"]
    assert attention.verdict in (Verdict.VIOLATED, Verdict.INCONCLUSIVE), attention.reason
    assert found["gradient/mlp/silu"].verdict == Verdict.HOLDS
    assert time.monotonic() - started < 60


def test_an_input_that_is_edited_in_place_is_a_violation_of_a_property_of_its_own() -> None:
    (record,) = records("edits_its_input", QUICKLY, select(["contract/attention/inputs-unchanged"])).values()
    assert record.verdict == Verdict.VIOLATED
    assert str(record.cause).startswith("x after the call")


def test_an_implementation_that_costs_one_process_after_another_is_given_up() -> None:
    asked = select(["gradient/attention", "gradient/mlp/silu"])
    events = list(run("suites.conformance.hostile:exits", asked, QUICKLY, workers=3))
    assert isinstance(events[-1], RunFinished)
    found = {r.id: r for r in events[-1].records}
    assert found.keys() == {p.id for p in asked}
    assert found["gradient/mlp/silu"].verdict == Verdict.HOLDS
    verdicts = Counter(r.verdict for r in found.values())
    # those under way in other workers are let finish
    assert IN_A_ROW <= verdicts[Verdict.VIOLATED] < IN_A_ROW + 3
    given_up = [r.reason or "" for r in found.values() if r.verdict == Verdict.INCONCLUSIVE]
    assert given_up
    for reason in given_up:
        assert reason.startswith("not run: ")
        assert "properties in a row that call attention each cost a worker process (crashed" in reason


@pytest.mark.parametrize(("name", "cause"), [("hangs_later", "hung"), ("exits_later", "crashed")])
def test_a_call_that_costs_the_process_leaves_its_case_behind(
    name: str, cause: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    subject = f"suites.conformance.hostile:{name}"
    asked = ["--properties", "gradient/attention/plain", "--timeout", "2"]
    assert main(["check", subject, *asked, "--save-counterexamples", str(tmp_path)]) == 1
    assert "case tested at that moment, of gradient/attention/plain" in capsys.readouterr().out
    saved = tmp_path / "gradient-attention-plain.json"
    assert json.loads(saved.read_text())["property"]["cause"] == cause
    assert main(["replay", str(saved)]) == 1
    assert main(["replay", str(saved), "--implementation", "reference"]) == 0
    script = [sys.executable, str(saved.with_suffix(".py"))]
    right = [("cemverify.conformance.implementations.reference:reference", 0)] if name == "exits_later" else []
    for implementation, code in ((subject, 1), *right):
        done = subprocess.run([*script, implementation], capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stdout + done.stderr
    assert not list(tmp_path.glob("cemverify-*"))  # the pages that questions were noted on


def test_a_process_lost_now_and_then_is_given_up_in_the_end() -> None:
    workers = LostWorkers()
    (crashing,), (sound,) = select(["gradient/attention/plain"]), select(["gradient/attention/rotary"])
    queue = deque([sound])
    for lost in range(IN_ALL):
        assert workers.give_up(queue) == []
        assert lost < IN_ALL
        workers.note(crashing, Record("", "", "", Verdict.VIOLATED, cause="crashed"), lost=True)
        workers.note(sound, Record("", "", "", Verdict.HOLDS), lost=False)
    (record,) = workers.give_up(queue)
    assert (record.id, record.verdict, len(queue)) == (sound.id, Verdict.INCONCLUSIVE, 0)
    assert record.reason == f"not run: the implementation has already cost {IN_ALL} worker processes"


@pytest.mark.parametrize("name", ["starts_a_child", "starts_a_daemon"])
def test_what_an_implementation_starts_ends_with_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEMVERIFY_TEST_CHILD", str(tmp_path / "pid"))
    records(name, IMPATIENTLY)
    child = int((tmp_path / "pid").read_text())
    for _ in range(50):
        state = Path(f"/proc/{child}/stat")
        if not state.exists() or state.read_text().split()[2] == "Z":
            return
        time.sleep(0.1)
    pytest.fail(f"process {child} is still there")


@pytest.mark.parametrize(
    "name", ["suites.conformance.hangs_on_import:anything", "suites.conformance.hostile:hangs_when_looked_at"]
)
def test_loading_ends_even_if_the_implementation_does_not_let_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "LOADING", 3.0)
    with pytest.raises(LoadError, match="did not finish within 3 seconds"):
        list(run(name, ONE_OF_EACH, QUICKLY))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says that a process is stopped")
def test_an_import_that_stops_its_process_is_told_at_once() -> None:
    began = time.monotonic()
    with pytest.raises(LoadError, match="it stopped its own process, as SIGSTOP does"):
        list(run("suites.conformance.stops_on_import:anything", ONE_OF_EACH, QUICKLY))
    assert time.monotonic() - began < isolation.LOADING


def test_the_command_line_says_which_property_was_hit_and_by_what(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.path", list(sys.path))
    few = ["--properties", *(p.id for p in ONE_OF_EACH), "--examples", "4", "--memory", "700", "--timeout", "5"]
    # each of the smaller cases that are looked for would fill the memory again: a crash ends the search
    assert main(["check", "suites.conformance.hostile:aborts_later", *few]) == 1
    said = capsys.readouterr().out
    assert "1 of 2 violated: it ended the interpreter (signal 6)" in said
    assert "of gradient/attention/plain: " in said
    assert "1 hold, 1 violated" in said


@pytest.mark.skipif(not limits_memory(), reason="memory can be limited on Linux only")
def test_a_worker_needs_some_memory_to_judge_at_all(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "reference", "--memory", "100"]) == 2
    assert capsys.readouterr().err == (
        f"error: a worker needs at least {LEAST_MEMORY} MB, and --memory is 100: give more\n"
    )


def test_where_memory_cannot_be_limited_a_sentence_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    monkeypatch.setattr("cemverify.conformance.workers.limits.LINUX", False)
    assert main(["check", "reference", "--memory", "4096"]) == 2
    assert capsys.readouterr().err == (
        "error: memory can be limited on Linux only, and this is darwin: leave out --memory\n"
    )


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
        ("suites.conformance.exits_on_import:anything", "ended the interpreter (exit code 0)"),
        ("suites.conformance.leaves_on_import:anything", "failed: SystemExit: 0"),
        ("nosuch", "give module:attribute"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_a_sentence(name: str, words: str) -> None:
    with pytest.raises(LoadError) as raised:
        list(run(name, ONE_OF_EACH, Effort()))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone forks workers from a server")
def test_the_server_ignores_an_interrupt_from_its_start_and_an_implementation_does_not() -> None:
    def ignores_interrupts(pid: int) -> bool:
        (mask,) = re.findall(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)

    nursery.get_ready("cemverify:reference")
    server = forkserver.server()
    assert server is not None
    assert ignores_interrupts(server)
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    worker = isolation._Worker("cemverify:reference", QUICKLY)
    try:
        worker.introduce()
        pids = descendants(worker.process.pid)
        assert pids
        assert not any(ignores_interrupts(pid) for pid in pids)
    finally:
        worker.dismiss()
