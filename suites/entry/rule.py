"""The one rule for commands, whatever they are given; and commands without the work that takes minutes.

A command ends in time with one of its exit codes. It prints at most one sentence about what is wrong, and no
traceback. It changes no existing file, what it writes is complete, and no control character reaches a terminal.
"""

from __future__ import annotations

import contextlib
import io
import json
import re
import signal
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn
from xml.etree import ElementTree

import pytest

from cemverify.commands import claims
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.questions.saving import Packing, restored
from cemverify.console.errors import Refusal
from suites.entry import ground

SECONDS = 30  # in which every command without real work must end, even on a busy machine
# of an unforeseen error, or of reading an endless file
SIGNS = ("Traceback", "something unforeseen", "memory ran out")
# a verdict on stdout that nothing could be judged: exit code 2 without a sentence
_NO_VERDICT = re.compile(r"[1-9]\d* inconclusive|\b0 run\b|INCONCLUSIVE|NOT OFFERED")

# functions that compute for minutes, by the place where they are called
_WORK = (
    *("cemverify.power.measuring.measure_power", "cemverify.repair.search.search", "cemverify.commands.demo._judge"),
    *("synthetic.examine.examine", "synthetic.recursion.conduct"),
    *("synthetic.language.studies.conduct", "synthetic.language.places.open_corpus"),
    *("synthetic.language.train.train_side_by_side", "benchmarks.harvest.harvest", "benchmarks.page.run"),
)


def work_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replaces long work by a sentence that it would begin, or by ready-made verdicts; everything else is real."""

    def refuse(*_: Any, **__: Any) -> NoReturn:
        raise Refusal("the work would begin here")

    def run(name: str, *_: Any, **__: Any) -> Iterator[RunFinished]:
        yield RunFinished(name, ground.records(), 1.0)

    def ask_again(name: str, property_: Any, question: Any, *_: Any, **__: Any) -> Record:
        packing = Packing()
        restored(packing.tree(question), packing.arrays)  # as on its way to the worker
        return ground.records()[0]

    for place in _WORK:
        monkeypatch.setattr(place, refuse)
    one = claims._judged
    monkeypatch.setattr(claims, "_judged", lambda of, workers: one(of, workers) if len(of) == 1 else refuse())
    monkeypatch.setattr("cemverify.conformance.workers.nursery.get_ready", lambda _: None)
    monkeypatch.setattr("cemverify.conformance.workers.isolation.run", run)
    monkeypatch.setattr("cemverify.conformance.workers.isolation.ask_again", ask_again)


def complaint(command: Callable[[], int]) -> str:
    """Runs a command, asserts the rule, and returns its error sentence; "" if it has none."""

    def too_long(*_: int | FrameType | None) -> None:
        raise AssertionError(f"no answer within {SECONDS} seconds")

    before = signal.signal(signal.SIGALRM, too_long)
    out, errors = io.StringIO(), io.StringIO()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
            code = command()
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    return complaint_of(code, out.getvalue(), errors.getvalue())


def complaint_of(code: int, out: str, errors: str) -> str:
    """The same for the exit code and output of a command."""
    sentences = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert code in (0, 1, 2), (code, errors)
    mute = code == 2 and _NO_VERDICT.search(" ".join(out.split())) is not None
    assert len(sentences) == (code == 2 and not mute), (code, out[-500:], errors)
    assert not [sign for sign in SIGNS if sign in errors], errors
    assert not [c for c in out + errors if ord(c) < 32 and c not in "\n\r"], "control characters"
    return sentences[0] if sentences else ""


def seen(folder: Path) -> dict[Path, tuple[int, ...]]:
    """The content of a folder: each path with its kind, size, inode and time, but folders only with their kind."""
    kept = {}
    for path in folder.rglob("*"):
        status = path.lstat()
        facts = (status.st_mode, status.st_size, status.st_ino, status.st_mtime_ns)
        kept[path] = facts[: 1 if stat.S_ISDIR(status.st_mode) else 4]  # a link counts as a link, wherever it leads
    return kept


def is_whole(path: Path) -> bool:
    """Whether a file made by a command is complete, as far as its format shows, and no temporary file left behind."""
    if re.fullmatch(r"\..+\.[0-9a-f]{32}", path.name):
        return False
    content = path.read_bytes()
    try:
        if path.suffix == ".jsonl":
            return all(json.loads(line) for line in content.splitlines())
        if content.startswith(b"{"):
            return bool(json.loads(content))
        if content.startswith((b"<?xml", b"<svg")):
            return bool(ElementTree.fromstring(content).tag)  # noqa: S314 -- ours
    except (ValueError, ElementTree.ParseError):
        return False
    if content.startswith(b"<!doctype html"):
        return content.rstrip().endswith(b"</html>")
    return bool(content)
