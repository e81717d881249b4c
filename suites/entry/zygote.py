"""Runs abuses: one process imports everything, and a fork of it runs each command in a folder of its own, watched.

    python -m suites.entry.zygote GROUND     pickled abuses on stdin, pickled outcomes on stdout

A fork takes a few hundredths of a second where a start takes five. What a command computes for minutes is replaced by
a sentence that the work would begin here, or by verdicts that are there already; what is read, checked and written
around it is real (`Abuse.real` computes as well).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import hashlib
import os
import pickle
import pkgutil
import resource
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from inspect import isfunction
from multiprocessing import util
from pathlib import Path
from typing import Any, NoReturn

from cemverify.conformance.workers.limits import descendants
from cemverify.processes.time_limits import TimeLimit
from suites.entry.abuses import CORE_SECONDS, SECONDS, Abuse, Outcome, is_whole
from suites.kit.processes import catches, heed, replace_stream
from suites.kit.source import PACKAGES, ROOT

Main = Callable[[Sequence[str]], int]

# what prints or computes as it is imported
_SCRIPTS = ("cemverify.conformance.counterexamples.standalone",)
# functions that compute for minutes, wherever they are
_WORK = ("measure_power", "conduct", "survey", "examine", "train_side_by_side", "open_corpus",
         "harvest", "perform", "search")  # fmt: skip

_MOST_BYTES = 3 * 2**30  # bytes of addresses beyond those of the zygote
_PR_SET_CHILD_SUBREAPER = 36


def outcomes(abuses: Iterable[Abuse], ground: Path) -> Iterator[tuple[Abuse, Outcome]]:
    """What comes of each, run by one zygote, in their order.

    Args:
        ground: the folder of which each gets a copy.
    """
    with subprocess.Popen(
        [sys.executable, "-m", __name__, str(ground)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "OMP_NUM_THREADS": "1"},
    ) as zygote:
        assert zygote.stdin is not None
        assert zygote.stdout is not None
        for abuse in abuses:
            pickle.dump(abuse, zygote.stdin)
            zygote.stdin.flush()
            yield abuse, pickle.load(zygote.stdout)  # noqa: S301 (our own)
        zygote.stdin.close()


# --- in the zygote ------------------------------------------------------------------------------------------


def _imported() -> Mapping[str, Main]:
    """Imports whatever commands import."""
    from docs.making.parsers import PROGRAMS, parsers
    from suites.kit.commands import MAINS

    for program in PROGRAMS:
        parsers(program)
    for package in PACKAGES:
        for module in pkgutil.walk_packages([str(ROOT / package)], f"{package}."):
            if not module.name.endswith("__main__") and module.name not in _SCRIPTS:
                with contextlib.suppress(ImportError):  # what is optional and not here
                    import_module(module.name)
    import_module("torch._dynamo")
    return MAINS


def _work_is_told(*, starts_servers: bool) -> None:
    """Commands say that their work would begin, or find verdicts that are there already."""
    from cemverify.claims import JudgedClaim, find_claim
    from cemverify.conformance.judging.events import RunFinished
    from cemverify.console.errors import Refusal
    from suites.entry.ground import records

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Refusal("the work would begin here")

    def run(name: str, *_: Any, **__: Any) -> Iterator[RunFinished]:
        yield RunFinished(name, records(), 1.0)

    def judged(*_: Any) -> Iterator[JudgedClaim]:
        yield JudgedClaim(find_claim("15-matched-mlp"), _FINDINGS)

    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] in PACKAGES]
    places = [(module, name) for module in ours for name in _WORK if isfunction(vars(module).get(name))]
    assert {name for _, name in places} == set(_WORK), "work has another name now"
    for module, name in places:
        setattr(module, name, refuse)
    _replace("benchmarks.page", "run", refuse)
    _replace("cemverify.commands.demo", "_judge", refuse)
    _replace("cemverify.commands.claims", "_judged", judged)
    _replace("cemverify.conformance.workers.isolation", "run", run)
    if not starts_servers:
        _replace("cemverify.conformance.workers.nursery", "get_ready", lambda _: None)
    _replace("cemverify.conformance.workers.isolation", "ask_again", lambda *_, **__: records()[0])


def _replace(module: str, name: str, by: Callable[..., Any]) -> None:
    imported = import_module(module)
    assert hasattr(imported, name), f"{module} has no {name} any more"
    setattr(imported, name, by)


_FINDINGS: Sequence[Any] = ()


def _perform(main: Main, abuse: Abuse, box: Path, temporary: Path, streams: Sequence[Path]) -> int:
    """In the child: goes to its folder, with its streams and limits, and runs the command."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.chdir("/proc" if abuse.folder == "read-only" else box)
    os.environ.update({"TMPDIR": str(temporary), "HOME": str(box), "COLUMNS": "80"})
    for name, value in abuse.environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    tempfile.tempdir = None
    if abuse.folder == "deleted":
        gone = box / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
    for name, number, how, path in (
        ("stderr", 2, abuse.streams[1], streams[1]),
        ("stdout", 1, abuse.streams[0], streams[0]),
    ):
        replace_stream(name, number, how, path, abuse.environment.get("PYTHONIOENCODING") or "utf-8")
    heed()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # as Python does
    if not abuse.real:
        _work_is_told(starts_servers=bool(abuse.limits))
    resource.setrlimit(resource.RLIMIT_CPU, (CORE_SECONDS, CORE_SECONDS))
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MOST_BYTES, used + _MOST_BYTES))
    for limit, name in ((resource.RLIMIT_NOFILE, "files"), (resource.RLIMIT_FSIZE, "bytes")):
        if name in abuse.limits:
            resource.setrlimit(limit, (abuse.limits[name], abuse.limits[name]))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        code = main([word.replace("BOX", str(box)) for word in abuse.words[1:]])
    except SystemExit as ended:
        code = 0 if ended.code is None else int(ended.code)
    threading._shutdown()  # type: ignore[attr-defined]  # as at the end of an interpreter
    util._exit_function()  # type: ignore[attr-defined]
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            return 120
    return code


def _prepare(abuse: Abuse, box: Path) -> None:
    for path, content in abuse.files.items():
        (box / path).parent.mkdir(parents=True, exist_ok=True)
        (box / path).write_bytes(bytes.fromhex(content))
    for path, how in abuse.made.items():
        at = box / path
        at.parent.mkdir(parents=True, exist_ok=True)
        if at.exists() or at.is_symlink():
            at.unlink()
        match how.split(" ", 1):
            case ["fifo"]:
                os.mkfifo(at)
            case ["folder"]:
                at.mkdir()
            case ["sparse"]:
                with open(at, "wb") as file:
                    file.truncate(2**38)
            case ["socket"]:
                with socket.socket(socket.AF_UNIX) as bound:
                    os.chdir(at.parent)
                    bound.bind(at.name)
            case ["->", target]:
                at.symlink_to(target)
            case ["=", target]:
                os.link(box / target, at)


def _seen(box: Path) -> dict[str, str]:
    """What lies in a folder, by path: links, contents' digests, kinds."""
    seen = {}
    for folder, folders, names in os.walk(box):
        for name in (*folders, *names):
            path = Path(folder, name)
            status = path.lstat()
            if stat.S_ISLNK(status.st_mode):
                description = f"-> {os.readlink(path)}"
            elif stat.S_ISREG(status.st_mode):
                sparse = status.st_size > 2**30
                description = "sparse" if sparse else hashlib.sha256(path.read_bytes()).hexdigest()
            elif stat.S_ISDIR(status.st_mode):
                description = "folder"
            else:
                description = str(stat.S_IFMT(status.st_mode))
            seen[str(path.relative_to(box))] = description
    return seen


def _wait(child: int, abuse: Abuse) -> tuple[int | None, float]:
    """The exit code of the child and how long it took; None if it had to be killed."""
    started = time.monotonic()
    signal_at, heeded = None, abuse.signals is None
    while (passed := time.monotonic() - started) < SECONDS:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status), passed
        if not heeded and abuse.signals is not None and catches(child, signal.SIGTERM):
            # before it does, the system ends it as any other process
            signal_at, heeded = passed + abuse.signals[1], True
        if signal_at is not None and abuse.signals is not None and passed >= signal_at:
            os.kill(child, abuse.signals[0])
            signal_at = None
        time.sleep(0.003)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None, passed


def _left(patience: float) -> int:
    """How many processes a command has left behind after that many seconds; they are ended."""
    limit = TimeLimit(patience, lambda: descendants(os.getpid()))
    while not limit.passed():
        try:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.02)
        except ChildProcessError:
            return 0
    own = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    for process in own:
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)
    with contextlib.suppress(ChildProcessError):
        while True:
            os.waitpid(-1, 0)
    return len(own)


def run_one(main: Main, abuse: Abuse, ground: Path) -> Outcome:
    """Runs a command in a copy of the ground, and looks at what it left."""
    with tempfile.TemporaryDirectory(prefix="abuse-") as around:
        box, temporary = Path(around, "outer", "box"), Path(around, "temporary")
        shutil.copytree(ground, box, symlinks=True)
        temporary.mkdir()
        streams = Path(around, "stdout"), Path(around, "stderr")
        for path in streams:
            path.touch()
        _prepare(abuse, box)
        before = _seen(box)
        sys.stdout.flush()
        if (child := os.fork()) == 0:
            ended = 99
            try:
                ended = _perform(main, abuse, box, temporary, streams)
            except BaseException as error:
                with contextlib.suppress(OSError):
                    streams[1].write_text(f"Traceback: {error!r}, outside the command")
                raise
            finally:
                os._exit(ended)
        code, seconds = _wait(child, abuse)
        processes = _left(5.0)  # an import waits for a core, and looks around after it
        after = _seen(box)
        fresh = [box / path for path in after.keys() - before.keys() if len(after[path]) == 64]
        return Outcome(
            code,
            streams[0].read_text("utf-8", "replace"),
            streams[1].read_text("utf-8", "replace"),
            round(seconds, 2),
            before,
            after,
            [str(path.relative_to(box)) for path in fresh if not is_whole(path)],
            sorted(path.name for path in temporary.iterdir()),
            processes,
        )


def main() -> None:
    """Answers abuses until there are no more."""
    global _FINDINGS
    ground = Path(sys.argv[1])
    answers, sys.stdout = sys.stdout, sys.stderr
    os.chdir(ground)
    mains = _imported()
    from cemverify.claims import find_claim, judge_claim

    _FINDINGS = judge_claim(find_claim("15-matched-mlp")).findings
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    gc.collect()
    gc.freeze()
    with contextlib.suppress(EOFError):
        while True:
            abuse: Abuse = pickle.load(sys.stdin.buffer)  # noqa: S301 (our own)
            pickle.dump(run_one(mains[abuse.words[0]], abuse, ground), answers.buffer)
            answers.flush()


if __name__ == "__main__":
    main()
