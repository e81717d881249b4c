"""The parser of every command, for the reference of commands and for the tests of what the pages show."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Mapping

import benchmarks.__main__
import reports.__main__
import synthetic.__main__
from cemverify import cli

# The programs, each with the parsers that it builds: a command line builds only that of the command it was given.
PROGRAMS = ("cemverify", "python -m synthetic", "python -m reports", "python -m benchmarks")


def parsers(program: str) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of a program and of all its commands, by the words that begin the command line.

    Raises:
        KeyError: it is none of `PROGRAMS`.
    """
    found: dict[str, argparse.ArgumentParser] = {}
    for chosen, parser in _BUILDERS[program]():
        found[program] = parser
        found |= _commands(program, parser, chosen)
    return found


def _commands(words: str, parser: argparse.ArgumentParser, chosen: str | None) -> dict[str, argparse.ArgumentParser]:
    """The commands of a parser that its help shows, and theirs; only the chosen one if it is named."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {choice.dest for choice in action._choices_actions}
            for name in sorted(shown & ({chosen} if chosen else shown), key=list(action.choices).index):
                found[f"{words} {name}"] = action.choices[name]
                found |= _commands(f"{words} {name}", action.choices[name], None)
    return found


_Built = Iterator[tuple[str | None, argparse.ArgumentParser]]


def _cemverify() -> _Built:
    for name in cli.COMMANDS:
        yield name, cli._parser([name])


def _synthetic() -> _Built:
    for name in synthetic.__main__.COMMANDS:
        yield name, synthetic.__main__._parser([name])


def _reports() -> _Built:
    for name in reports.__main__.COMMANDS:
        yield name, reports.__main__._parser([name])


def _benchmarks() -> _Built:
    yield None, benchmarks.__main__._harvest_parser()
    yield None, benchmarks.__main__._parser()


# in the order of `PROGRAMS`
_BUILDERS: Mapping[str, Callable[[], _Built]] = dict(
    zip(PROGRAMS, (_cemverify, _synthetic, _reports, _benchmarks), strict=True)
)
