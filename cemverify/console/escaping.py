"""Text from outside, such as names, errors and titles, made safe: it stays on its line and controls no terminal."""

from __future__ import annotations

import re
import unicodedata

_LONG_NUMBER = re.compile(r"\d{60,}")
_LONGEST = 4000

# control characters, invisible ones (some change the direction of writing), lone surrogates, line separators
_INVISIBLE = frozenset(("Cc", "Cf", "Cs", "Cn", "Zl", "Zp"))


def visible(text: str) -> str:
    """The text with its line breaks; other invisible characters are written as escapes."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c == "\n" or unicodedata.category(c) not in _INVISIBLE else ascii(c)[1:-1] for c in text)


def one_line(text: str) -> str:
    """Text on one line: control characters made visible, line breaks as spaces, numbers of hundreds of digits cut."""
    text = visible(" ".join(text.splitlines()))
    text = _LONG_NUMBER.sub(lambda match: f"{match[0][:20]}... ({len(match[0])} digits)", text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def brief(text: object, most: int = 120) -> str:
    """Text from outside on one line, with at most that many characters; "..." marks a cut."""
    flat = one_line(str(text))
    return flat if len(flat) <= most else f"{flat[: most - 3]}..."
