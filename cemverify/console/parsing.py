"""The parser of every command line, and the numbers that options take."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

from cemverify.console.errors import UsageError

# More of anything (examples, points, steps) than this is a slip of the finger.
MOST = 10**12

# Seeds that every generator takes: torch's, NumPy's, Hypothesis's.
MOST_SEED = 2**32 - 1

# More processes than this are no machine's.
MOST_WORKERS = 4096


class Parser(argparse.ArgumentParser):
    """A parser that raises where argparse prints a long usage and exits.

    An argument that it does not know is refused by the command that was asked for, so that the usage line is its own.

    Raises:
        UsageError: the arguments cannot be read; holds one usage line, and says where the help is.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help", self.usage_line())

    def usage_line(self) -> str:
        """The usage in one line: the options are in the help."""
        if self.usage:
            return " ".join(self.format_usage().split())
        formatter = argparse.HelpFormatter(f"{self.prog} [option ...]", width=10**6)
        formatter.add_usage(None, self._get_positional_actions(), [], "usage: ")
        return formatter.format_help().strip()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As its parent, but refuses what it does not know."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self.about_unknown(unknown))
        return found, []

    def about_unknown(self, words: Sequence[str]) -> str:
        """What is said about words that it does not know."""
        option = next((word.partition("=")[0] for word in words if word.startswith("-")), None)
        return f"{words[0]!r} is one word too many" if option is None else f"there is no option {option}"


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """The type of a whole number in a range, for argparse."""

    def read(text: str) -> int:
        try:
            value = int(text) if len(text) <= 100 else most + 1
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < least:
            raise argparse.ArgumentTypeError(f"must be at least {least:,}, not {value:,}")
        if value > most:
            raise argparse.ArgumentTypeError(f"must be at most {most:,}, not {text}")
        return value

    return read


def positive(text: str) -> float:
    """The type of a positive number, for argparse."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, not {value:g}")
    return value


seed = whole(0, MOST_SEED)
count = whole(1)
workers = whole(0, MOST_WORKERS)
