"""A command that is ended by a signal, a denied system call or a sealed store says so and tidies up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

import pytest

from cemverify.console import guard
from cemverify.console.errors import UsageError
from cemverify.console.interrupts import WORDS
from cemverify.processes import forkserver
from cemverify.processes.time_limits import TimeLimit
from cemverify.results.envelope import write_text
from cemverify.runs import CellStore, RunOptions, ctrl_c_after, run_cells
from suites.kit.commands import Told, call, refused
from suites.kit.processes import catches, heed, left
from suites.runs.light import walks
from synthetic.studies.engine.conduct import Course, WantedCells, conduct

EVERY = {signal.Signals[name]: 128 + signal.Signals[name] for name in WORDS}
ONCE = {number: code for number, code in EVERY.items() if number.name in ("SIGTERM", "SIGHUP")}


@pytest.fixture(autouse=True)
def as_in_a_terminal() -> Iterator[None]:
    """Ignores no signal from the start, unlike a script's background processes, which ignore SIGINT and SIGQUIT."""
    ignored = [number for number in EVERY if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)


each = pytest.mark.parametrize("number", EVERY, ids=lambda number: number.name)
at_once = pytest.mark.parametrize("number", ONCE, ids=lambda number: number.name)


@each
def test_a_signal_while_a_module_is_imported_is_told(number: signal.Signals, here: Path, told: Told) -> None:
    (here / "signalling.py").write_text(f"import signal\nsignal.raise_signal({int(number)})\n")
    before = {each: signal.getsignal(each) for each in EVERY}
    printed = told("synthetic examine signalling:kernel", EVERY[number])
    assert printed.out == ""
    assert printed.err.splitlines()[-1].startswith(f"error: {WORDS[number.name]}")
    assert "Traceback" not in printed.err
    assert {each: signal.getsignal(each) for each in EVERY} == before


Collecting = Callable[[Callable[..., Any]], tuple[int, str]]


@pytest.fixture
def collecting(here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Collecting:
    """Runs a command that does this instead of collecting results; returns its exit code and its one sentence."""

    def run(collect: Callable[..., Any]) -> tuple[int, str]:
        monkeypatch.setattr("reports.collect.collect", collect)
        code = call(["reports", "tables", "."])
        (sentence,) = capsys.readouterr().err.splitlines()
        assert sentence.startswith("error: ")
        return code, sentence

    return run


def refuse(*_: Any, **__: Any) -> NoReturn:
    raise UsageError("this is refused")


def deny(*_: Any, **__: Any) -> NoReturn:
    raise OSError(errno.EROFS, "Read-only file system")


def test_a_signal_whose_exception_a_library_swallows_ends_the_command_soon(collecting: Collecting) -> None:
    went_on = []

    def swallows(*_: Any, **__: Any) -> NoReturn:
        with suppress(BaseException):
            signal.raise_signal(signal.SIGHUP)
        time.sleep(10)
        went_on.append(True)
        refuse()

    assert collecting(swallows)[0] == ONCE[signal.SIGHUP]
    assert not went_on


def test_what_is_closed_after_a_signal_may_take_longer_and_is_not_disturbed(collecting: Collecting) -> None:
    closed = []

    def closes_for_long(*_: Any, **__: Any) -> NoReturn:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            try:
                raise OSError("a library fails as it closes")
            except OSError:
                time.sleep(2.5)
            closed.append(True)
        raise AssertionError("the signal was not heeded")

    assert collecting(closes_for_long)[0] == ONCE[signal.SIGTERM]
    assert closed


@at_once
@pytest.mark.parametrize("place", ["_streams", "_run", "_tell"])
def test_a_signal_before_a_command_begins_and_as_its_end_is_told_is_one_sentence(
    place: str, number: signal.Signals, collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = getattr(guard, place)

    def signalled(*arguments: Any) -> Any:
        signal.raise_signal(number)
        return original(*arguments)

    monkeypatch.setattr(guard, place, signalled)
    assert collecting(refuse)[0] in (2, ONCE[number])  # the signal may come too late


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("files", "left"),
    [((), "nothing was written"), (("r.json", *"abc", "r.json"), "written before that: r.json, a, b and 1 more")],
)
def test_a_signal_within_a_line_is_told_on_a_line_of_its_own_with_what_was_written(
    files: Sequence[str], left: str, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    def prints(*_: Any, **__: Any) -> NoReturn:
        for name in files:
            write_text(Path(name), "")
        print("half a line", end="", file=sys.stderr)
        signal.raise_signal(signal.SIGTERM)
        raise AssertionError("the signal was not heeded")

    monkeypatch.setattr("reports.collect.collect", prints)
    printed = told("reports tables .", ONCE[signal.SIGTERM])
    assert printed.err.splitlines() == ["half a line", f"error: terminated; {left}"]


@at_once
def test_a_signal_as_a_temporary_folder_is_made_leaves_none(
    number: signal.Signals, tmp_path: Path, collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    makes, here = os.mkdir, tmp_path / "temporary"
    here.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(here))

    def signalled(*arguments: Any) -> None:
        makes(*arguments)
        signal.raise_signal(number)

    def collects(*_: Any, **__: Any) -> NoReturn:
        monkeypatch.setattr(os, "mkdir", signalled)
        with tempfile.TemporaryDirectory():
            time.sleep(10)
        refuse()

    assert collecting(collects)[0] == ONCE[number]
    assert list(here.iterdir()) == []


@pytest.mark.skipif(not forkserver.FORKS, reason="Linux alone forks workers from a server")
@each
def test_a_signal_as_the_server_of_workers_is_started_is_heeded_after_that(
    number: signal.Signals, collecting: Collecting, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[object] = []

    def signalled() -> None:
        os.kill(os.getpid(), number)
        begun.append(number)

    def collects(*_: Any, **__: Any) -> NoReturn:
        monkeypatch.setattr("multiprocessing.forkserver.ensure_running", signalled)
        forkserver.ensure_server()
        time.sleep(10)
        begun.append("and nothing came of it")
        refuse()

    assert collecting(collects)[0] == EVERY[number]
    assert begun == [number]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_that_has_not_chosen_what_it_heeds_ends_by_a_signal_without_a_word(collecting: Collecting) -> None:
    codes = []

    def forks(*_: Any, **__: Any) -> NoReturn:
        if not (child := os.fork()):
            signal.raise_signal(signal.SIGTERM)
            os._exit(1)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        refuse()

    assert collecting(forks)[0] == 2
    assert codes == [ONCE[signal.SIGTERM]]


def test_an_error_after_an_interrupt_that_was_dealt_with_is_told_as_what_it_is(collecting: Collecting) -> None:
    def goes_on(*_: Any, **__: Any) -> NoReturn:
        with suppress(KeyboardInterrupt), ctrl_c_after(0.0):  # the clock of --until
            time.sleep(10)
        raise UsageError("the disk is full")

    code, sentence = collecting(goes_on)
    assert code == 2
    assert "the disk is full" in sentence


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENOSPC, errno.EFBIG, errno.EDQUOT, errno.EAGAIN])
def test_what_the_system_denies_is_told_in_a_sentence_wherever_it_happens(
    number: int, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def denied(*_: Any, **__: Any) -> NoReturn:
        try:
            raise OSError(number, os.strerror(number))
        except OSError as error:
            raise RuntimeError("a library says this") from error

    monkeypatch.setattr("reports.collect.collect", denied)
    monkeypatch.setattr(tempfile, "tempdir", str(here))
    assert "unforeseen" not in refused(["reports", "tables", "."], capsys)
    assert list(here.iterdir()) == []


def test_processes_that_cannot_work_together_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cemverify.runs.executors.ProcessPoolExecutor", deny)
    with pytest.raises(UsageError, match=r"is /dev/shm writable\?\), try --workers 0"):
        run_cells(walks(1), RunOptions(tmp_path, workers=1))


def test_a_finished_study_reads_a_store_nobody_may_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    here = RunOptions(tmp_path, workers=0)
    before = run_cells(walks(2), here)
    for name in ("mkdir", "touch", "write_bytes", "write_text", "unlink"):  # denied even to root
        monkeypatch.setattr(Path, name, deny)
    monkeypatch.setattr(os, "replace", deny)
    assert run_cells(walks(2), here) == before
    with pytest.raises(UsageError, match="cannot be written"):
        run_cells(walks(3), here)


def test_without_resume_each_task_is_computed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[str] = []
    original = CellStore.put

    def counted(self: CellStore, cell: Any, *rest: Any) -> Any:
        put.append(cell.key)
        return original(self, cell, *rest)

    def study() -> Course[int]:
        first = yield WantedCells(walks(2))
        both = yield WantedCells(walks(3))
        return len([*first, *both])

    monkeypatch.setattr(CellStore, "put", counted)
    run_cells(walks(1), RunOptions(tmp_path, workers=0))
    run = conduct(study, RunOptions(tmp_path, workers=0, resume=False))
    assert (run.result, run.todo) == (5, ())
    assert sorted(put[1:]) == sorted(cell.key for cell in walks(3))


ENDING = 60.0  # seconds, not counting those spent waiting for a core


# with a server and workers, where most has to end; a thorough run has others, some before torch is imported
CASES = (
    ("cemverify check reference --properties gradient contract --workers 1", "SIGQUIT", 4.0),
    *(
        pytest.param(line, name, after, marks=pytest.mark.thorough)
        for line in (
            "cemverify claims --workers 1",
            "cemverify check reference --properties gradient/mlp/silu --workers 1 --watch",
            "cemverify power reference --store s --workers 1 --examples 4",
            "synthetic recursion --preset smoke --workers 1 --store s",
        )
        for name, after in (("SIGINT", 0.02), ("SIGTERM", 0.3), ("SIGHUP", 0.8), ("SIGQUIT", 1.6), ("SIGTERM", 4.0))
    ),
)


@pytest.mark.skipif(sys.platform != "linux", reason="what is left behind is read from /proc")
@pytest.mark.slow
@pytest.mark.parametrize(("line", "name", "after"), CASES)
def test_a_signal_ends_a_command_in_a_sentence_and_leaves_nothing(
    line: str, name: str, after: float, tmp_path: Path
) -> None:
    folder, temporary = tmp_path / "here", tmp_path / "temporary"
    folder.mkdir()
    temporary.mkdir()
    package, *rest = line.split()
    environment = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": str(Path(__file__).parents[2])}
    words = [sys.executable, "-m", package, *rest]
    how: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    while True:
        process = subprocess.Popen(words, cwd=folder, env=environment, start_new_session=True, preexec_fn=heed, **how)
        time.sleep(after)
        while process.poll() is None and not catches(process.pid, signal.SIGQUIT):
            time.sleep(0.01)
        if process.poll() is None:
            break
        process.communicate()  # it had finished before
        after /= 2
    sent = time.monotonic()
    process.send_signal(signal.Signals[name])
    limit, errors = TimeLimit(ENDING, lambda: [process.pid]), None
    while errors is None and not limit.passed():
        with suppress(subprocess.TimeoutExpired):
            _, errors = process.communicate(timeout=1)
    if errors is None:
        os.killpg(process.pid, signal.SIGKILL)
        _, errors = process.communicate()
        pytest.fail(f"it went on for {ENDING:.0f} s after {name}; it had said: {errors[-500:]}")
    assert process.returncode == EVERY[signal.Signals[name]], (time.monotonic() - sent, errors[-2000:])
    sentences = [text for text in errors.splitlines() if text.startswith("error: ")]
    assert len(sentences) == 1, errors
    assert not [words for words in ("Traceback", "Exception ignored") if words in errors], errors
    # importing torch._dynamo makes this folder, which is torch's cache
    assert {path.name.partition("_")[0] for path in temporary.iterdir()} <= {"torchinductor"}
    assert left(process.pid) == []
