"""A command that breaks the rule in every way, so that it is known that each way is seen."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

_ENVIRONMENT = {"os": os, "sys": sys, "tempfile": tempfile, "time": time, "Path": Path}

# what each does, the exit code that it ends with, and a part of the complaint
WAYS: Mapping[str, tuple[str, int, str]] = MappingProxyType(
    {
        "changes an input": ("Path('right.py').write_text('')", 0, "changes right.py"),
        "replaces a link": ("Path('link').unlink(); Path('link').write_text('content')", 0, "changes link"),
        "removes an input": ("Path('r.json').unlink()", 0, "changes r.json"),
        "leaves half a file": ("Path('new.json').write_text('{1: [1, ')", 0, "new.json, which is not whole"),
        "leaves what was begun aside": (
            "Path('.new.json.' + 32 * '0').write_text('{}')", 0, "which is not whole"),
        "leaves a temporary file": ("tempfile.mkdtemp(); os._exit(0)", 0, "among temporary files"),
        "leaves a process": ("os.fork() or (os.setsid(), time.sleep(600), os._exit(0))", 0, "leaves 1 processes"),
        "tells a traceback": (
            "print('Traceback (most recent call last):\\nerror: it failed', file=sys.stderr)", 2, "says 'Traceback'"),
        "complains twice": (
            "print('error: it failed\\nerror: it failed again', file=sys.stderr)", 2, "2 sentences of complaint"),
        "fails without a word": ("pass", 2, "without a word"),
        "complains and succeeds": (
            "print('error: it failed', file=sys.stderr)", 0, "complains, and ends with exit code 0"),
        "has an exit code of its own": ("print('error: it failed', file=sys.stderr)", 7, "exit code 7"),
        "clears the terminal": ("print('\\x1b[2J')", 0, "control characters"),
    }
)  # fmt: skip


def main(words: Sequence[str]) -> int:
    """Does what the way named on the command line does wrong; returns the exit code."""
    deed, code, _ = WAYS[words[0]]
    exec(deed, dict(_ENVIRONMENT))  # noqa: S102
    return code
