"""A hostile implementation gets a typed verdict for the property under way, and the run goes on."""

from __future__ import annotations

import json
import multiprocessing
import re
import signal
import subprocess
import sys
import time
from collections import Counter, deque
from dataclasses import replace
from pathlib import Path

import pytest

from cemverify.catalogue.detection import most_telling_first
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.ending import TO_THE_END, Ending
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import select
from cemverify.conformance.workers import compiling, nursery
from cemverify.conformance.workers import worker as pair
from cemverify.conformance.workers.giving_up import IN_A_ROW, IN_ALL, LostWorkers
from cemverify.conformance.workers.isolation import run
from cemverify.conformance.workers.limits import descendants, is_gone
from cemverify.processes import forkserver
from suites.conformance.hostile import ROWS
from suites.kit.commands import Told
from suites.kit.judging import ONE_OF_EACH, QUICKLY, finished, records
from suites.kit.processes import soon

pytestmark = pytest.mark.slow

HOSTILE = "suites.conformance.hostile"


@pytest.fixture(autouse=True)
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that hostile implementations write; temporary folders are in the same place."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setenv("CEMVERIFY_TEST_CHILD", str(tmp_path / "child"))
    return tmp_path / "child"


@pytest.mark.parametrize("name", ROWS)
def test_misbehaviour_gets_its_verdict_and_the_run_goes_on(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """A wrong answer never holds, whatever its process writes, replaces, stops or kills."""
    row = ROWS[name]
    if row.stops_judges:
        monkeypatch.setattr(pair, "_SILENT", 2.0)  # a sign of life comes twice a second
    said_beforehand = row.cause or row.verdicts == (Verdict.HOLDS,)
    patience = QUICKLY.timeout if said_beforehand else 3.0
    started = time.monotonic()
    effort = replace(QUICKLY, timeout=1.0 if row.cause == "hung" else patience)
    attention, mlp = records(f"{HOSTILE}:{name}", effort).values()
    reason = attention.reason or ""
    assert attention.verdict in row.verdicts, reason
    assert mlp.verdict == Verdict.HOLDS
    assert time.monotonic() - started < 60
    if not said_beforehand:
        return
    assert attention.cause == row.cause, reason
    assert row.words in reason
    assert len(reason) < 1000
    assert reason.isprintable()
    if row.cause == "hung":
        assert reason == "a call did not return within 1 s (--timeout allows more)"
    assert capfd.readouterr() == ("", "")
    assert not list(tmp_path.glob("cemverify-*"))


def test_an_implementation_that_costs_one_process_after_another_is_given_up() -> None:
    properties = select(["gradient/attention", "gradient/mlp/silu"])
    by_id = {r.id: r for r in finished(run(f"{HOSTILE}:exits", properties, QUICKLY, workers=3)).records}
    assert by_id.keys() == {p.id for p in properties}
    assert by_id["gradient/mlp/silu"].verdict == Verdict.HOLDS
    verdicts = Counter(r.verdict for r in by_id.values())
    # properties under way in other workers may finish
    assert IN_A_ROW <= verdicts[Verdict.VIOLATED] < IN_A_ROW + 3
    given_up = [r.reason or "" for r in by_id.values() if r.verdict == Verdict.INCONCLUSIVE]
    assert given_up
    for reason in given_up:
        assert reason.startswith("not run: ")
        assert "properties in a row that call attention each cost a worker process (crashed" in reason


@pytest.mark.parametrize(("option", "code"), [("", 0), ("--absent=strict", 1)])
def test_features_declared_absent_are_asked_for_and_decide_the_exit_code_if_strict(
    option: str, code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr("cemverify.commands.effort.properties", lambda _: select(["contract/attention/determinism"]))
    file = tmp_path / "result.json"
    written = told(f"cemverify check {HOSTILE}:declares_absent --json {file} {option}", code).out
    asked = json.loads(file.read_text())["absences"]
    assert asked == {
        "right": ["step-size", "gradients", "diagonal:shared", "diagonal:per-head", "norm:scalar", "norm:folded"],
        "ignored": ["steps"],
        "absent": ["position:alibi", "position:self-cross", "position:rotary"],
    }
    assert ": step-size, gradients, diagonal, norm:scalar, norm:folded\ndeclared absent, but accepted" in written


def test_a_call_that_costs_the_process_leaves_its_case_behind(tmp_path: Path, told: Told) -> None:
    options = f"--properties gradient/attention/plain --timeout 1 --save-counterexamples {tmp_path}"
    printed = told(f"cemverify check {HOSTILE}:exits_later {options}", 1).out
    assert "case tested at that moment, of gradient/attention/plain" in printed
    saved = tmp_path / "gradient-attention-plain.json"
    assert json.loads(saved.read_text())["property"]["cause"] == "crashed"
    told(f"cemverify replay {saved}", 1)
    told(f"cemverify replay {saved} --implementation reference")
    # it ends the interpreter, so it needs its own
    done = subprocess.run([sys.executable, str(saved.with_suffix(".py"))], capture_output=True, text=True)
    assert done.returncode == 1, done.stdout + done.stderr
    assert not list(tmp_path.glob("cemverify-*"))  # the files in which questions are recorded


def test_a_process_lost_now_and_then_is_given_up_in_the_end() -> None:
    workers = LostWorkers()
    (crashing,), (sound,) = select(["gradient/attention/plain"]), select(["gradient/attention/rotary"])
    queue = deque([sound])
    for _ in range(IN_ALL):
        assert workers.give_up(queue) == []
        workers.note(crashing, Record("", "", "", Verdict.VIOLATED, cause="crashed"), lost=True)
        workers.note(sound, Record("", "", "", Verdict.HOLDS), lost=False)
    (record,) = workers.give_up(queue)
    assert (record.id, record.verdict, len(queue)) == (sound.id, Verdict.INCONCLUSIVE, 0)
    assert record.reason == f"not run: the implementation has already cost {IN_ALL} worker processes"


@pytest.mark.parametrize("name", ["starts_a_child", "starts_a_daemon"])
def test_what_an_implementation_starts_ends_with_it(name: str, child: Path) -> None:
    records(f"{HOSTILE}:{name}", replace(QUICKLY, timeout=1.0))
    assert soon(lambda: is_gone(int(child.read_text())), 5)


def at_import(here: Path, code: str) -> str:
    """The name of an implementation whose module runs a line of code on import."""
    (here / "hostile_at_import.py").write_text(f"import os, signal, time\n{code}\n")
    return "hostile_at_import:anything"


@pytest.mark.parametrize("name", ["", f"{HOSTILE}:hangs_when_looked_at"])
def test_loading_ends_whatever_is_loaded(name: str, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair, "LOADING", 1.0)
    with pytest.raises(LoadError, match="did not finish within 1 s"):
        list(run(name or at_import(here, "time.sleep(600)"), ONE_OF_EACH, QUICKLY))


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone says that a process is stopped")
def test_an_import_that_stops_its_process_is_told_at_once(here: Path) -> None:
    began = time.monotonic()
    with pytest.raises(LoadError, match="it stopped its own process, as SIGSTOP does"):
        list(run(at_import(here, "os.kill(os.getpid(), signal.SIGSTOP)"), ONE_OF_EACH, QUICKLY))
    assert time.monotonic() - began < pair.LOADING


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{HOSTILE}:nothing", "no attribute 'nothing'"),
        (f"{HOSTILE}:not_an_implementation", "not an implementation"),
        (f"{HOSTILE}:not_plain", "its declaration cannot be read: NotAnArray: it returned a float"),
        ("os._exit(9)", "ended the interpreter (exit code 9)"),
        ("os._exit(0)", "ended the interpreter (exit code 0)"),
        ("raise SystemExit(0)", "failed: SystemExit: 0"),
    ],
)
def test_what_cannot_be_loaded_is_said_in_a_sentence(name: str, words: str, here: Path) -> None:
    with pytest.raises(LoadError) as raised:
        list(run(at_import(here, name) if "(" in name else name, ONE_OF_EACH, Effort()))
    assert words in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.skipif(sys.platform != "linux", reason="Linux alone forks workers from a server")
def test_the_server_ignores_an_interrupt_from_its_start_and_an_implementation_does_not() -> None:
    def ignores_interrupts(pid: int) -> bool:
        (mask,) = re.findall(r"^SigIgn:\s*(\w+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
        return bool(int(mask, 16) >> (signal.SIGINT - 1) & 1)

    nursery.get_ready("cemverify:reference")
    assert ignores_interrupts(forkserver.server() or 0)
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN
    worker = pair.Worker("cemverify:reference", QUICKLY)
    try:
        worker.introduce()
        pids = descendants(worker.process.pid)
        assert pids
        assert not any(ignores_interrupts(pid) for pid in pids)
    finally:
        worker.dismiss()


def test_a_worker_that_sends_what_is_no_message_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """For instance with a user's property that writes into every open file."""
    ours, theirs = multiprocessing.Pipe()
    monkeypatch.setattr(nursery, "start", lambda *_: (multiprocessing.current_process(), ours))
    worker = pair.Worker("cemverify:reference", QUICKLY)
    theirs.send_bytes(bytes(4))
    assert worker._receive(1.0) is None
    assert not worker.alive


def test_jax_compiles_quickly_in_the_pinned_version_and_what_the_user_sets_comes_last(tmp_path: Path) -> None:
    (pinned,) = re.findall(r"^jax==(\d+)\.(\d+)", Path("constraints.txt").read_text(), re.MULTILINE)
    first, last = compiling.TRIED
    assert first <= tuple(map(int, pinned)) <= last, "try the flags with this jaxlib, then widen TRIED"
    mine = {"XLA_FLAGS": "--xla_backend_optimization_level=3", "JAX_COMPILATION_CACHE_DIR": "mine"}
    environment = compiling.compiling(mine, str(tmp_path))
    assert environment["XLA_FLAGS"].endswith(mine["XLA_FLAGS"])
    assert environment["JAX_COMPILATION_CACHE_DIR"] == "mine"


def test_a_whole_run_begins_with_what_takes_a_process_and_a_limited_one_ends_with_it() -> None:
    alone = {p.id for p in select(["contract"]) if p.first}
    whole, limited, to_the_first = (
        [p.id for p in ending.ordered(select(["contract", "structure"]), ())]
        for ending in (TO_THE_END, Ending(after=60.0), Ending(lambda record: record.verdict == Verdict.VIOLATED))
    )
    assert len(alone) > 1
    assert set(whole[: len(alone)]) == set(limited[-len(alone) :]) == alone
    telling = most_telling_first(to_the_first, ())
    assert to_the_first == sorted(telling, key=lambda id_: not id_.endswith("/shape-and-dtype"))
