"""What may be shown on a stream: rewritten lines, colours, and how many columns there are.

    NO_COLOR      if it is not empty, nothing is coloured (https://no-color.org)
    FORCE_COLOR   if it is not empty, everything is, in the log of a CI service too; NO_COLOR wins
    TERM=dumb     a terminal that shows neither colours nor rewritten lines

A file, a pipe or a log gets plain lines, and tables and sentences as wide as they are.
"""

from __future__ import annotations

import os
import shutil
import sys
from textwrap import wrap
from typing import TextIO

from cemverify.console.escaping import visible

# Less than this is not even tried: words would be cut.
NARROWEST = 40
# Sentences are not set wider than this, however wide the terminal is: nobody can read them.
READABLE = 110


def is_live(stream: TextIO) -> bool:
    """Whether lines can be rewritten there."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def is_coloured(stream: TextIO) -> bool:
    """Whether colours are wanted there."""
    if os.environ.get("NO_COLOR"):
        return False
    return bool(os.environ.get("FORCE_COLOR")) or is_live(stream)


def columns(stream: TextIO) -> int | None:
    """How wide a text may be there; None if it may be as wide as it is."""
    return max(shutil.get_terminal_size().columns, NARROWEST) if stream.isatty() else None


def wrapped(text: str, width: int | None) -> str:
    """A text whose lines fit the terminal; what is continued is indented further than its beginning."""
    if width is None:
        return text
    width = min(width, READABLE)
    lines = []
    for line in visible(text).splitlines():
        indent = len(line) - len(line.lstrip())
        hanging = " " * min(indent + 4, width // 2)
        # an id is not broken at its hyphens
        lines += wrap(line, width, subsequent_indent=hanging, break_on_hyphens=False) if len(line) > width else [line]
    return "\n".join(lines)


def note(text: str) -> None:
    """Prints a line about the work on stderr; names of files in it, whatever they are, control no terminal."""
    print(visible(text), file=sys.stderr, flush=True)
