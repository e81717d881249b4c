"""What may be shown on a stream: rewritten lines, colours, and how many columns there are.

    NO_COLOR      if it is not empty, nothing is coloured (https://no-color.org)
    FORCE_COLOR   if it is not empty, everything is, in the log of a CI service too; NO_COLOR wins
    TERM=dumb     a terminal that shows neither colours nor rewritten lines

A file, a pipe or a log gets plain lines, and tables and sentences as wide as they are.
"""

from __future__ import annotations

import os
import shutil
from typing import TextIO

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
