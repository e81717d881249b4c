"""A program and its commands as Markdown: the help of each, so that nothing is copied by hand."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from docs.making.parsers import parsers

_WIDTH = 96


def markdown(program: str) -> str:
    """A description of the program, and a section for each of its commands.

    Raises:
        KeyError: there is no such program.
    """
    (_, own), *commands = parsers(program).items()
    sections = [f"### `{words.removeprefix('python -m ')}`\n\n{_help(parser)}" for words, parser in commands]
    return "\n".join([_help(own), *sections])


def _help(parser: argparse.ArgumentParser) -> str:
    formatter: Any = parser.formatter_class
    parser.formatter_class = partial(formatter, width=_WIDTH)
    return f"```text\n{parser.format_help()}```\n"
