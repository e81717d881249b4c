"""What an abuse is, what came of it, and the one rule by which every outcome is judged.

Whatever a command is given, it ends in time with one of its exit codes; it says at most one sentence about what is
wrong, and no traceback; nothing that was there is changed, what it writes is whole, and no process or temporary file
of its own is left.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree

# Seconds after which a command counts as hung, on a busy machine too; and those of a core that it may use.
SECONDS, CORE_SECONDS = 120.0, 60

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ASIDE = re.compile(r"\..+\.[0-9a-f]{32}")


@dataclass(frozen=True)
class Abuse:
    """A command line and what it finds around it."""

    kind: str  # which strategy drew it
    words: tuple[str, ...]  # the command line, the program first; BOX in a word is the folder of the files
    files: Mapping[str, str] = field(default_factory=dict)  # what replaces files of the ground, in hexadecimal digits
    # what else is put there, by path: "fifo", "socket", "folder", "sparse"; "-> TARGET", "= TARGET" for (hard) links
    made: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()  # inputs that it may change, as its help says; a folder stands for what is in it
    environment: Mapping[str, str | None] = field(default_factory=dict)  # variables; None removes one
    limits: Mapping[str, int] = field(default_factory=dict)  # "files", "bytes" of a file, "processes"
    streams: tuple[str, str] = ("open", "open")  # "open", "full" or "closed", of stdout and stderr
    folder: str = "usual"  # or "read-only" or "deleted"
    signals: tuple[int, float] | None = None  # number and seconds after the start
    real: bool = False  # whether it does its work, and not only what surrounds it
    wrong: bool = False  # whether what it judges is wrong, so that it may not succeed
    ends: int | None = None  # its exit code where its output can be read and its folder is there; None: any
    writes: str = ""  # the file that it must write then


@dataclass(frozen=True)
class Outcome:
    """What came of it."""

    code: int | None  # the exit code, negative for a signal; None if it had to be killed
    # what it printed
    stdout: str
    stderr: str
    seconds: float  # that it took
    # what lies in its folder: links, contents' digests and kinds, by path
    before: Mapping[str, str]
    after: Mapping[str, str]
    broken: Sequence[str]  # files that are there and not whole
    temporary: Sequence[str]  # what it left among temporary files
    processes: int  # how many it left


def complaints(abuse: Abuse, outcome: Outcome) -> list[str]:
    """In how many ways an outcome breaks the rule; what is excused is left out."""
    departures = _complaints(abuse, outcome)
    return [each for each in departures if not any(excuse.fits(each, abuse, outcome) for excuse in EXCUSED)]


# of an error that nobody foresaw, or of reading what has no end
_SIGNS = ("Traceback", "something unforeseen", "memory ran out")
_MUTE, _CONTROLS, _CHANGES = "ends without a word of complaint", "sends control characters to a terminal", "changes "


def _complaints(abuse: Abuse, outcome: Outcome) -> Iterator[str]:
    allowed = {0, 1, 2}
    if abuse.signals is not None:
        number = abuse.signals[0]
        allowed |= {-number if number == signal.SIGKILL else 128 + number}
    if outcome.code is None:
        yield f"does not end within {SECONDS:g} s"
    elif outcome.code not in allowed:
        yield f"exit code {outcome.code}"
    elif outcome.code == 0 and abuse.wrong:
        yield "passes what is wrong"
    yield from _undone(abuse, outcome)
    errors = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
    yield from (f"says {sign!r}" for sign in _SIGNS if sign in outcome.stderr)
    if len(errors) > 1:
        yield f"{len(errors)} sentences of complaint"
    if outcome.code is not None and outcome.code >= 2 and not errors:
        yield _MUTE
    if outcome.code in (0, 1) and errors:
        yield f"complains, and ends with exit code {outcome.code}"
    if _controls(outcome.stdout + outcome.stderr):
        yield _CONTROLS
    for path, content in outcome.before.items():
        if outcome.after.get(path) != content:
            yield f"{_CHANGES}{path}"
    yield from (f"leaves {path}, which is not whole" for path in outcome.broken)
    yield from (f"leaves {name} among temporary files" for name in outcome.temporary)
    if outcome.processes:
        yield f"leaves {outcome.processes} processes"


def _undone(abuse: Abuse, outcome: Outcome) -> Iterator[str]:
    """What was to be done and was not: output that nobody can read is no success."""
    if abuse.ends is None:
        return
    cannot = abuse.folder == "deleted" or (abuse.ends < 2 and abuse.streams[0] != "open")
    if outcome.code != (code := 2 if cannot else abuse.ends):
        yield f"exit code {outcome.code} in place of {code}"
    if abuse.folder != "deleted" and abuse.writes and abuse.writes not in outcome.after:
        yield f"does not write {abuse.writes}"


def _controls(printed: str) -> bool:
    return any(ord(c) < 32 and c not in "\n\r" for c in printed)


# --- what is excused ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Excuse:
    """A departure from the rule that stays."""

    reason: str  # why it stays
    fits: Callable[[str, Abuse, Outcome], bool]  # whether a complaint is about that


def _is_to_change(complaint: str, abuse: Abuse, _: Outcome) -> bool:
    path = complaint.removeprefix(_CHANGES)
    return path != complaint and bool(abuse.changed) and path.startswith(abuse.changed)


def _cannot_be_read(complaint: str, abuse: Abuse, _: Outcome) -> bool:
    return complaint == _MUTE and (abuse.streams[1] != "open" or "bytes" in abuse.limits)


def _is_a_verdict(complaint: str, abuse: Abuse, outcome: Outcome) -> bool:
    verdicts = r"[1-9]\d* inconclusive|\b0 run\b|so the run is inconclusive|INCONCLUSIVE|NOT OFFERED"
    # where verdicts are made up, or a property of the user's own is at fault; elsewhere it is a mistake of ours
    if not abuse.real or "--properties-from" in abuse.words:
        verdicts += r"|[1-9]\d* suite error|SUITE ERROR"
    verdict = re.search(verdicts, " ".join(outcome.stdout.split()))
    return complaint == _MUTE and outcome.code == 2 and verdict is not None


def _was_asked_for(complaint: str, abuse: Abuse, outcome: Outcome) -> bool:
    in_colour = complaint == _CONTROLS and bool(abuse.environment.get("FORCE_COLOR"))
    return in_colour and not _controls(_COLOUR.sub("", outcome.stdout + outcome.stderr))


def _is_left_by_the_dead(complaint: str, abuse: Abuse, _: Outcome) -> bool:
    killed = abuse.signals is not None and abuse.signals[0] == signal.SIGKILL
    aside = re.fullmatch(r"leaves (.*), which is not whole", complaint)
    return killed and (complaint.endswith("among temporary files") or bool(aside and ASIDE.search(aside[1])))


EXCUSED = (
    Excuse("the command line says that this is written, and the same command line does not read it", _is_to_change),
    Excuse("stderr is closed, or is a file that may not grow: a complaint has no place to go", _cannot_be_read),
    Excuse("the verdict on stdout says that nothing could be judged", _is_a_verdict),
    Excuse("FORCE_COLOR asks for colours, and there are no other control characters", _was_asked_for),
    Excuse("what SIGKILL leaves aside: nobody can remove it then, and its name is that of no result",
           _is_left_by_the_dead),
)  # fmt: skip


def is_whole(path: Path) -> bool:
    """Whether a file that a command has made has its end, as far as its format tells."""
    if ASIDE.fullmatch(path.name):
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
