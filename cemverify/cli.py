"""The command line: `cemverify COMMAND ...`; see `cemverify.commands`."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING

from cemverify.console.guard import Run, enter

if TYPE_CHECKING:
    from cemverify.console.parsing import Parser

# The summary of each command. Its module has its name, and only the chosen one is imported.
COMMANDS: Mapping[str, str] = MappingProxyType(
    {
        "demo": "see a mistake found and fixed",
        "init": "write the files to start from",
        "check": "test an implementation",
        "repair": "find the edit that mends an implementation",
        "replay": "judge a saved counterexample again",
        "list": "list the properties and features",
        "claims": "judge the statements of the paper",
        "power": "measure which faults a run would catch",
        "completion": "print the shell code that completes commands and ids",
    }
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; bad input is one sentence on stderr and exit code 2."""
    return enter(_chosen, arguments)


def _chosen(arguments: list[str]) -> Run:
    import os

    if "_ARGCOMPLETE" in os.environ:  # the shell asks how the line could go on
        from cemverify.commands.completers import complete

        complete(_parser(os.environ.get("COMP_LINE", "").split()))
    from cemverify.console.parsing import again

    options = _parser(arguments).parse_args(arguments)
    options.command = again(["cemverify"], arguments)
    return lambda: int(options.run(options))


def _parser(arguments: Sequence[str]) -> Parser:
    from cemverify._version import VERSION
    from cemverify.catalogue import versions
    from cemverify.console.parsing import Parser, add_commands

    parser = Parser(
        prog="cemverify",
        description="Tells you whether an implementation of energy-based Transformer layers is right, and "
        "shows the evidence.",
    )
    version = f"cemverify {VERSION}, catalogue {versions.current()}"
    parser.add_argument("--version", action="version", version=version)
    add_commands(parser, COMMANDS, arguments, "cemverify.commands")
    return parser


if __name__ == "__main__":
    sys.exit(main())
