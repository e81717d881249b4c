"""The parser of every command, for the reference of commands and for the tests of what the pages show."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from types import ModuleType

import benchmarks.__main__
import reports.__main__
import synthetic.__main__
from cemverify import cli

# The module of each program, by the first words of its command line.
PROGRAMS: Mapping[str, ModuleType] = {
    "cemverify": cli,
    "python -m synthetic": synthetic.__main__,
    "python -m reports": reports.__main__,
    "python -m benchmarks": benchmarks.__main__,
}


def parsers(program: str) -> Mapping[str, argparse.ArgumentParser]:
    """The parsers of a program and of all its commands, by the first words of the command line.

    Raises:
        KeyError: it is none of `PROGRAMS`.
    """
    module = PROGRAMS[program]
    if program == "python -m benchmarks":
        return {program: module._parser(), f"{program} gpu": module._gpu_parser()}
    found: dict[str, argparse.ArgumentParser] = {}
    for chosen in module.COMMANDS:  # a command line builds only the parser of its own command
        found[program] = parser = module._parser([chosen])
        found |= _commands(program, parser, chosen)
    return found


def _commands(words: str, parser: argparse.ArgumentParser, chosen: str | None) -> dict[str, argparse.ArgumentParser]:
    """The commands that a parser's help shows, and their commands; only the chosen one if it is named."""
    found = {}
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            shown = {choice.dest for choice in action._choices_actions}
            for name in sorted(shown & ({chosen} if chosen else shown), key=list(action.choices).index):
                found[f"{words} {name}"] = action.choices[name]
                found |= _commands(f"{words} {name}", action.choices[name], None)
    return found
