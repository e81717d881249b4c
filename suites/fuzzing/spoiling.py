"""A command that breaks the rule in every way, so that it is known that each way is seen."""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType


def _changes_an_input() -> int:
    Path("right.py").write_text("")
    return 0


def _replaces_a_link() -> int:
    Path("link").unlink()
    Path("link").write_text("content")
    return 0


def _removes_an_input() -> int:
    Path("r.json").unlink()
    return 0


def _leaves_half_a_file() -> int:
    Path("new.json").write_text('{"half": [1, ')
    return 0


def _leaves_what_was_begun_aside() -> int:
    Path(f".new.json.{'0' * 32}").write_text("{}")
    return 0


def _leaves_a_temporary_file() -> int:
    with contextlib.ExitStack() as stack:
        stack.push(tempfile.TemporaryDirectory())
        os._exit(0)


def _leaves_a_process() -> int:
    if os.fork() == 0:
        os.setsid()
        time.sleep(600)
        os._exit(0)
    return 0


def _tells_a_traceback() -> int:
    print("Traceback (most recent call last):\nerror: it failed", file=sys.stderr)
    return 2


def _complains_twice() -> int:
    print("error: it failed\nerror: it failed again", file=sys.stderr)
    return 2


def _fails_without_a_word() -> int:
    return 2


def _complains_and_succeeds() -> int:
    print("error: it failed", file=sys.stderr)
    return 0


def _has_an_exit_code_of_its_own() -> int:
    print("error: it failed", file=sys.stderr)
    return 7


def _clears_the_terminal() -> int:
    print("\x1b[2J")
    return 0


# with a part of the complaint that is due
WAYS: Mapping[str, tuple[Callable[[], int], str]] = MappingProxyType(
    {
        "changes an input": (_changes_an_input, "changes right.py"),
        "replaces a link": (_replaces_a_link, "changes link"),
        "removes an input": (_removes_an_input, "changes r.json"),
        "leaves half a file": (_leaves_half_a_file, "new.json, which is not whole"),
        "leaves what was begun aside": (_leaves_what_was_begun_aside, "which is not whole"),
        "leaves a temporary file": (_leaves_a_temporary_file, "among temporary files"),
        "leaves a process": (_leaves_a_process, "leaves 1 processes"),
        "tells a traceback": (_tells_a_traceback, "says 'Traceback'"),
        "complains twice": (_complains_twice, "2 sentences of complaint"),
        "fails without a word": (_fails_without_a_word, "without a word"),
        "complains and succeeds": (_complains_and_succeeds, "complains, and ends with exit code 0"),
        "has an exit code of its own": (_has_an_exit_code_of_its_own, "exit code 7"),
        "clears the terminal": (_clears_the_terminal, "control characters"),
    }
)


def main(words: Sequence[str]) -> int:
    """Does what the way named on the command line does wrong; returns the exit code."""
    return WAYS[words[0]][0]()
