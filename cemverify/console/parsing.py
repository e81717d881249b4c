"""The parser of every command line, and the types of numbers and paths that options take."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import re
import shlex
import shutil
import textwrap
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from cemverify.console.errors import UsageError
from cemverify.console.streams import READABLE

# A larger number of anything (examples, points, steps) is a typing mistake.
MOST = 10**12

# No run takes longer than this.
MOST_SECONDS = 1_000_000

# The largest seed that every generator takes: torch's, NumPy's, Hypothesis's.
MOST_SEED = 2**32 - 1

# No machine runs more processes than this.
MOST_WORKERS = 4096

# Bytes of a name and of a path, and a path's parts: limits of file systems, and of sensible folders.
MOST_NAME, MOST_PATH, MOST_FOLDERS = 255, 4095, 250


# No options are left out.
NOTHING: Mapping[str, int] = {}


class Help(argparse.RawDescriptionHelpFormatter):
    """Help as wide as the terminal, but no wider than is readable: paragraphs are wrapped, examples and lists kept.

    An example that is too long takes two lines: the command, and below it the explanation. A row of a list,
    whose two columns are at least two spaces apart, is wrapped in its second column.
    """

    def __init__(self, prog: str, **options: Any) -> None:
        options.setdefault("width", min(shutil.get_terminal_size().columns, READABLE) - 1)
        super().__init__(prog, **options)

    def _format_usage(self, usage: str | None, *more: Any) -> str:
        text = super()._format_usage(usage, *more)
        if usage is None:
            return text
        return textwrap.fill(text.strip(), self._width, subsequent_indent="    ", break_on_hyphens=False) + "\n\n"

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines: list[str] = []
        lists = itertools.groupby(text.splitlines(), key=lambda line: not line or line[0] == " " or "  " in line)
        for is_list, group in lists:
            if is_list:
                lines += [part for line in group for part in _example(line, width)]
            else:
                lines += textwrap.wrap(" ".join(group), width, break_on_hyphens=False)
        return "\n".join(f"{indent}{line}" for line in lines)


def _example(line: str, width: int) -> list[str]:
    if len(line) <= width:
        return [line]
    if row := re.match(r"( {8,}|\S.*?  +)(?=\S)", line):
        return textwrap.wrap(line[row.end() :], width, initial_indent=row[1], subsequent_indent=" " * row.end())
    command, _, about = line.strip().partition("   ")
    return [
        *textwrap.wrap(command, width, initial_indent="  ", subsequent_indent="      ", break_on_hyphens=False),
        *textwrap.wrap(about.strip(), width, initial_indent="      ", subsequent_indent="      "),
    ]


class Parser(argparse.ArgumentParser):
    """A parser that raises an error where argparse prints a long usage message and exits.

    The command that was chosen refuses an unknown argument, so that the usage line is that command's.
    Options cannot be abbreviated: a later version may have an option with the same beginning.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"allow_abbrev": False, **kwargs})

    def error(self, message: str) -> NoReturn:
        usage = " ".join(self.format_usage().split())
        if not self.usage:  # on one line: the options are in the help
            formatter = argparse.HelpFormatter(f"{self.prog} [option ...]", width=10**6)
            formatter.add_usage(None, self._get_positional_actions(), [], "usage: ")
            usage = formatter.format_help().strip()
        raise UsageError(f"{message}; see {self.prog} --help", usage)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Reads the arguments, and refuses unknown ones, which argparse would pass on."""
        options, unknown = super().parse_known_args(args, namespace)
        option = next((word.partition("=")[0] for word in unknown if word.startswith("-")), None)
        if option is not None:
            known = [*self._option_string_actions]
            near = ["--output"] if option == "--json" else get_close_matches(option, known, 1, 0.75)
            meant = f"; did you mean {near[0]}?" if {*near} & {*known} else ""
            self.error(f"there is no option {option}{meant}")
        if unknown:
            self.error(f"{unknown[0]!r} is one argument too many")
        return options, []


def add_commands(
    parser: argparse.ArgumentParser, commands: Mapping[str, str], arguments: Sequence[str], package: str
) -> None:
    """Adds a program's commands, of which only the chosen one is imported: some imports take a second.

    Args:
        commands: their summaries, by name. arguments: the arguments.
        package: the package that has a module for each command, with `DESCRIPTION`, `EPILOG` if it has one,
            `add_arguments(parser)` and `run(options)`.
    """
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    chosen = next((word for word in arguments if word in commands), None)
    for name, summary in commands.items():
        if name != chosen:
            subparsers.add_parser(name, help=summary)
            continue
        module = import_module(f"{package}.{name}")
        command = subparsers.add_parser(
            name,
            help=summary,
            description=module.DESCRIPTION,
            epilog=getattr(module, "EPILOG", None),
            formatter_class=Help,
        )
        module.add_arguments(command)
        command.set_defaults(run=module.run)


def again(program: Sequence[str], arguments: Sequence[str], without: Mapping[str, int] = NOTHING) -> str:
    """A shell command that repeats this run: as it was given, except for options that change no result.

    Args:
        program: its first words, such as "python", "-m", "synthetic".
        without: options to drop, with the number of values that each has.
    """
    words, skipped = list(program), 0
    for word in arguments:
        option, equals, _ = word.partition("=")
        if option in without:
            skipped = 0 if equals else without[option]
        elif skipped:
            skipped -= 1
        else:
            words.append(word)
    return shlex.join(words)


def whole(least: int, most: int = MOST) -> Callable[[str], int]:
    """A type for argparse: a whole number in a range."""

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
    """A type for argparse: a positive number."""
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number") from None
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"must be a positive number, not {value:g}")
    return value


def seconds(text: str) -> float:
    """A type for argparse: a time in seconds."""
    value = positive(text)
    if value > MOST_SECONDS:
        raise argparse.ArgumentTypeError(f"must be at most {MOST_SECONDS:,}, not {text}")
    return value


def path(text: str) -> Path:
    """A type for argparse: a path that a file system can hold."""
    if not text:
        raise argparse.ArgumentTypeError("an empty text names no file; give a file name")
    try:
        longest = max((len(os.fsencode(part)) for part in Path(text).parts), default=0)
        whole_length = len(os.fsencode(text))
    except UnicodeEncodeError:
        raise argparse.ArgumentTypeError(f"{text[:60]!a} has characters that no file name can hold") from None
    if "\0" in text:
        raise argparse.ArgumentTypeError(f"{text[:60]!a} has a null character, which no file name can hold")
    if longest > MOST_NAME:
        raise argparse.ArgumentTypeError(f"a name of {longest:,} bytes is too long: at most {MOST_NAME}")
    if whole_length > MOST_PATH or len(Path(text).parts) > MOST_FOLDERS:
        raise argparse.ArgumentTypeError(
            f"a path of {whole_length:,} bytes and {len(Path(text).parts):,} parts is too long: at most "
            f"{MOST_PATH:,} bytes and {MOST_FOLDERS} parts"
        )
    return Path(text)


def percentage(text: str) -> float:
    """A type for argparse: a share in percent."""
    value = positive(text)
    if value > 100:
        raise argparse.ArgumentTypeError(f"must be at most 100, not {value:g}")
    return value


seed = whole(0, MOST_SEED)
count = whole(1)
workers = whole(0, MOST_WORKERS)
