"""What an abuse is, what came of it, and the one rule by which every outcome is judged.

Whatever a command is given, it ends in time with one of its exit codes; it says at most one sentence about what is
wrong, and no traceback; nothing that was there is changed, what it writes is whole, and no process or temporary file
of its own is left.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

# Seconds after which a command counts as hung, on a busy machine too; and those of a core that it may use.
SECONDS, CORE_SECONDS = 120.0, 60

_COLOUR = re.compile(r"\x1b\[[0-9;]*m")
ASIDE = re.compile(r"\..+\.[0-9a-f]{32}")


@dataclass(frozen=True)
class Abuse:
    """A command line and what it finds around it.

    Attributes:
        kind: which generator made it. words: the command line, the program first.
        files: what replaces files of the ground, in hexadecimal digits, by path. made: what else is put there, by
            path: "fifo", "socket", "folder", "sparse", "-> TARGET" for a link, or "= TARGET" for a hard link.
        changed: inputs that the command may change, as its help says; a folder stands for what is in it.
        environment: variables; None removes one. limits: "files", "bytes" of a file, "processes".
        streams: "open", "full" or "closed", of stdout and stderr. folder: "usual", "read-only" or "deleted".
        signals: number and seconds after the start. real: whether it does its work, and not only what surrounds it.
    """

    kind: str
    words: tuple[str, ...]
    files: Mapping[str, str] = field(default_factory=dict)
    made: Mapping[str, str] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    environment: Mapping[str, str | None] = field(default_factory=dict)
    limits: Mapping[str, int] = field(default_factory=dict)
    streams: tuple[str, str] = ("open", "open")
    folder: str = "usual"
    signals: tuple[int, float] | None = None
    real: bool = False


@dataclass(frozen=True)
class Outcome:
    """What came of it.

    Attributes:
        code: the exit code, negative for a signal; None if it had to be killed. stdout, stderr: what it printed.
        seconds: that it took. before, after: what lies in its folder: links, contents' digests and kinds, by path.
        broken: files that are there and not whole. temporary: what it left among temporary files.
        processes: how many it left.
    """

    code: int | None
    stdout: str
    stderr: str
    seconds: float
    before: Mapping[str, str]
    after: Mapping[str, str]
    broken: Sequence[str]
    temporary: Sequence[str]
    processes: int


@dataclass(frozen=True)
class Excuse:
    """An outcome that departs from the rule and stays so.

    Attributes:
        complaint, said: patterns of the complaint, and of what the command said. reason: why it stays.
    """

    complaint: str
    said: str
    reason: str


EXCUSED: tuple[Excuse, ...] = ()


def complaints(abuse: Abuse, outcome: Outcome) -> list[str]:
    """In how many ways an outcome breaks the rule; what is excused is left out."""
    found = list(_complaints(abuse, outcome))
    said = outcome.stderr + outcome.stdout
    return [each for each in found if not any(_fits(excuse, each, said) for excuse in EXCUSED)]


def _fits(excuse: Excuse, complaint: str, said: str) -> bool:
    return bool(re.search(excuse.complaint, complaint) and re.search(excuse.said, said))


# of an error that nobody foresaw, or of reading what has no end
_SIGNS = ("Traceback", "something unforeseen", "memory ran out")


def _complaints(abuse: Abuse, outcome: Outcome) -> Sequence[str]:
    found: list[str] = []
    allowed = {0, 1, 2}
    if abuse.signals is not None:
        allowed |= {128 + abuse.signals[0]}
    if outcome.code is None:
        found.append(f"does not end within {SECONDS:g} s")
    elif outcome.code not in allowed:
        found.append(f"exit code {outcome.code}")
    errors = [line for line in outcome.stderr.splitlines() if line.startswith("error: ")]
    found += [f"says {sign!r}" for sign in _SIGNS if sign in outcome.stderr]
    if abuse.streams[1] == "open" and "bytes" not in abuse.limits and outcome.code is not None:
        if len(errors) > 1:
            found.append(f"{len(errors)} sentences of complaint")
        if outcome.code >= 2 and not errors:
            found.append("ends without a word of complaint")
        if outcome.code in (0, 1) and errors and abuse.signals is None:
            found.append(f"complains, and ends with exit code {outcome.code}")
    printed = outcome.stdout + outcome.stderr
    if abuse.environment.get("FORCE_COLOR"):
        printed = _COLOUR.sub("", printed)
    if any(ord(c) < 32 and c not in "\n\r" for c in printed):
        found.append("sends control characters to a terminal")
    for path, content in outcome.before.items():
        if outcome.after.get(path) != content and not path.startswith(abuse.changed or ("\0",)):
            found.append(f"changes {path}")
    found += [f"leaves {path}, which is not whole" for path in outcome.broken]
    found += [f"leaves {name} among temporary files" for name in outcome.temporary]
    if outcome.processes:
        found.append(f"leaves {outcome.processes} processes")
    return found


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


_ALWAYS = ("kind", "words")


def as_json(abuse: Abuse) -> dict[str, Any]:
    """To be sent to another process, and to be kept as a regression."""
    usual = Abuse(abuse.kind, abuse.words)
    kept = {name: value for name, value in vars(abuse).items() if name in _ALWAYS or value != getattr(usual, name)}
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in kept.items()}


def from_json(content: Mapping[str, Any]) -> Abuse:
    """What `as_json` has written."""
    made: dict[str, Any] = {n: tuple(value) if isinstance(value, list) else value for n, value in content.items()}
    return Abuse(**made)


SIGNALS = (signal.SIGINT, signal.SIGTERM)
