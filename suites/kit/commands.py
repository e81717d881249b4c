"""Commands, called in this process as a user would call them."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest

import benchmarks.__main__
import cemverify.cli
import reports.__main__
import synthetic.__main__

MAINS: Mapping[str, Callable[[Sequence[str]], int]] = MappingProxyType(
    {
        "cemverify": cemverify.cli.main,
        "synthetic": synthetic.__main__.main,
        "reports": reports.__main__.main,
        "benchmarks": benchmarks.__main__.main,
    }
)


def call(words: Sequence[str]) -> int:
    """Runs a command line, the program first; returns its exit code."""
    try:
        return MAINS[words[0]](words[1:])
    except SystemExit as ended:  # after --help
        return int(ended.code or 0)


@dataclass(frozen=True)
class Printed:
    """What a command printed on each stream."""

    out: str
    err: str

    @property
    def flat(self) -> str:
        """Its stdout in one line, so that tests do not depend on line breaks."""
        return " ".join(self.out.split())


Told = Callable[..., Printed]  # the fixture `told`: takes a command line and an exit code, by default 0


def refused(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The error of a command that must be refused: at most one usage line, one sentence, and exit code 2."""
    before = set(Path(tempfile.gettempdir()).glob("cemverify-traceback-*"))
    code = call(words)
    captured = capsys.readouterr()
    lines = [line for line in captured.err.splitlines() if not line.startswith(("drawing ", "tokenis"))]
    assert code == 2, captured
    assert captured.out == ""
    assert [line.partition(":")[0] for line in lines] in (["error"], ["usage", "error"]), captured.err
    assert "Traceback" not in captured.err
    assert set(Path(tempfile.gettempdir()).glob("cemverify-traceback-*")) == before, captured.err
    return lines[-1]
