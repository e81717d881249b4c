"""What may be shown on a stream: rewritten lines, colours, and how many columns it has.

    NO_COLOR      if not empty, nothing is coloured (https://no-color.org)
    FORCE_COLOR   if not empty, everything is, in a CI service's log too; NO_COLOR wins
    TERM=dumb     a terminal that shows neither colours nor rewritten lines

Files, pipes and logs get plain lines, with tables and sentences at full width.
"""

from __future__ import annotations

import os
import shutil
import sys
from textwrap import wrap
from typing import TextIO

from cemverify.console.escaping import visible

# Narrower terminals are ignored: words would be cut.
NARROWEST = 40
# Sentences are not set wider than this, however wide the terminal is: they would be hard to read.
READABLE = 110


def is_live(stream: TextIO) -> bool:
    """Whether lines can be rewritten on that stream."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_coloured(stream: TextIO) -> bool:
    """Whether colours are wanted on that stream."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_live(stream)


def columns(stream: TextIO) -> int | None:
    """How wide text may be there; None for any width."""
    return max(shutil.get_terminal_size().columns, NARROWEST) if stream.isatty() else None


def wrapped(text: str, width: int | None) -> str:
    """A text whose lines fit the terminal; continuation lines are indented further."""
    if width is None:
        return text
    width = min(width, READABLE)
    lines = []
    for line in visible(text).splitlines():
        indent = len(line) - len(line.lstrip())
        hanging = " " * min(indent + 4, width // 2)
        # ids are not broken at their hyphens
        lines += wrap(line, width, subsequent_indent=hanging, break_on_hyphens=False) if len(line) > width else [line]
    return "\n".join(lines)


def note(text: str) -> None:
    """Prints a line about the work on stderr, with control characters in file names made visible."""
    print(visible(text), file=sys.stderr, flush=True)
