"""The parser of the command lines that complain in one sentence."""

from __future__ import annotations

import argparse
from typing import NoReturn

from cemverify.errors import UsageError


class Parser(argparse.ArgumentParser):
    """A parser that raises where argparse prints the usage and exits.

    Raises:
        UsageError: the arguments make no sense; says where the help is.
    """

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see {self.prog} --help")
