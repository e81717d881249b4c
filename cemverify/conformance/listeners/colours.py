"""Colours, added to a finished report: no layout depends on them, and no information is in them alone."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from cemverify.console.escaping import visible
from cemverify.console.streams import is_coloured
from cemverify.results.envelope import show

GREEN, RED, YELLOW, MAGENTA = "green", "bold red", "yellow", "magenta"

OF_VERDICTS: Mapping[str, str] = {"holds": GREEN, "violated": RED, "inconclusive": YELLOW, "suite error": MAGENTA}

# What is coloured in a report, and how: cells of the table, headings, counts in the last line.
_PATTERNS: Mapping[str, str] = {
    # a cell of a row, and a count within a family's cell
    r"(?m)(?<=[ ]{2})((all )?[1-9]\d* hold(?=,|  |$)|holds(?=  |$))": GREEN,
    r"(?m)(?<=[ ]{2}|, )([1-9]\d* violated(?!, (known|not))(?=,|  |$)|violated(?=  |$))": RED,
    r"(?m)(?<=[ ]{2}|, )([1-9]\d* )?violated, (known|not enforced)(?=,|  |$)": YELLOW,
    r"(?m)(?<=[ ]{2}|, )([1-9]\d* inconclusive(?=,|  |$)|inconclusive(?=  |$))": YELLOW,
    r"(?m)(?<=[ ]{2}|, )([1-9]\d* suite errors?(?=,|  |$)|suite error(?=  |$))": MAGENTA,
    r"(?m)^(ALSO )?VIOLATED\b.*$|^ *(STALE|REGRESSION)\b": RED,
    r"(?m)^(INCONCLUSIVE|NOT ENFORCED)\b.*$": YELLOW,
    r"(?m)^SUITE ERROR\b.*$": MAGENTA,
    r"\b[1-9]\d* hold\b": GREEN,
    r"\b[1-9]\d*( of \d+)? violated\b": RED,
    r"\b[1-9]\d* inconclusive\b": YELLOW,
    r"\b[1-9]\d* suite errors?\b": MAGENTA,
    r"(?m)^ *(claim|source|wrong part|smallest case found|case tested at that moment|"
    r"worst example seen|at|again|mend|also|suggested edit|may follow from it)\b[^:\n]*:": "bold",
    r"(?m)^[- ]{4,}$": "dim",
}


def show_coloured(text: str) -> None:
    """Prints a report on stdout, in colour if that is wanted."""
    if not is_coloured(sys.stdout):
        show(text)
        return
    from rich.console import Console
    from rich.text import Text

    painted = Text(visible(text))
    for pattern, style in _PATTERNS.items():
        painted.highlight_regex(pattern, style)
    console = Console(file=sys.stdout, force_terminal=True, color_system="standard", no_color=False, highlight=False)
    console.print(painted, soft_wrap=True)
