"""The command line of the synthetic bench: `python -m synthetic COMMAND ...`; a command is a module of that name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cemverify.console.guard import Run, enter, importing

if TYPE_CHECKING:
    from cemverify.console.parsing import Parser

COMMANDS = {
    "recursion": "recursive CEM MLPs on functions of known difficulty, compared with the Bayes-optimal error",
    "language": "small language models, Llama and CEM, on text or on sources of known entropy",
    "examine": "one regression task: its difficulty, a check of its floor, a test of its sampler",
}

# Options that say how, where and how long something is computed, with the number of their values. They do not change
# the results.
NO_MATTER = {
    **dict.fromkeys(("--store", "--workers", "--cluster", "--shard", "--until", "--output", "--json"), 1),
    **dict.fromkeys(("--corpora", "--tflops", "--folder", "--save-every"), 1),
    **dict.fromkeys(("--retry-failed", "--resume", "--no-resume"), 0),
}

DESCRIPTION = """\
Studies of what the recursion depth T and the choice of energy buy. Each prints its tables, reports progress on
stderr, and writes a result file (--output).
"""

EPILOG = """\
examples:
  python -m synthetic recursion --prior rbf --steps 1 2 4 8 --preset quick --output out/recursion.json
  python -m synthetic language train --preset tiny
  python -m synthetic examine "warped(matern52) + 0.1*linear"
  python -m reports tables out              every result below out/ as tables

Exit code 0; 1 if what was run failed its checks; 2 with one sentence on stderr if the arguments are invalid or a file
cannot be written.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    return enter(_chosen, arguments)


def _chosen(arguments: list[str]) -> Run:
    from cemverify.console.errors import UsageError
    from cemverify.console.parsing import again

    try:
        with importing():
            parser = _parser(arguments)
        options = parser.parse_args(arguments)
        options.again = again(["python", "-m", "synthetic"], arguments, NO_MATTER)
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is missing; pip install -c constraints.txt -e '.[bench]'") from error

    def run() -> int:
        from cemverify.runs import ShardFinished

        try:
            return int(options.run(options))
        except ShardFinished as finished:
            print(finished, file=sys.stderr)
            return 0

    return run


def _parser(arguments: Sequence[str]) -> Parser:
    """The parser. Only the chosen command is imported, because the libraries of some take seconds to load."""
    from cemverify.console.parsing import Help, Parser, add_commands

    parser = Parser(prog="python -m synthetic", description=DESCRIPTION, epilog=EPILOG, formatter_class=Help)
    add_commands(parser, COMMANDS, arguments, "synthetic")
    return parser


if __name__ == "__main__":
    sys.exit(main())
