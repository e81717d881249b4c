"""The command line: `cemverify COMMAND ...`; the commands are in `cemverify.commands`."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from types import MappingProxyType

from cemverify._version import VERSION
from cemverify.conformance.implementations.contract import LoadError
from cemverify.errors import UsageError
from cemverify.results import ResultError

# Module and summary of each command. Only the chosen command is imported, because some imports take a second.
COMMANDS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "check": ("check", "test an implementation"),
        "replay": ("replay", "judge a saved counterexample again"),
        "list": ("list_", "list the properties and features"),
        "claims": ("claims", "judge the statements of the paper"),
        "power": ("power", "measure which faults a run would catch"),
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; bad input is one sentence on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser(given).parse_args(given)
    options.command = shlex.join(["cemverify", *given])
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (LoadError, ResultError, UsageError, ValueError) as error:
        print(f"cemverify: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt as told:
        print(f"cemverify: {str(told) or 'interrupted, nothing was written'}", file=sys.stderr)
        return 130


def _parser(given: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cemverify",
        description="Tells you whether an implementation of energy-based Transformer layers is right, and "
        "shows the evidence.",
    )
    parser.add_argument("--version", action="version", version=f"cemverify {VERSION}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    chosen = next((word for word in given if word in COMMANDS), None)
    for name, (module, summary) in COMMANDS.items():
        if name != chosen:
            commands.add_parser(name, help=summary)
            continue
        command = import_module(f"cemverify.commands.{module}")
        subparser = commands.add_parser(
            name,
            help=summary,
            description=command.DESCRIPTION,
            epilog=getattr(command, "EPILOG", None),
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        command.add_arguments(subparser)
        subparser.set_defaults(run=command.run)
    return parser


if __name__ == "__main__":
    sys.exit(main())
