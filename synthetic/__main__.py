"""The command line of the synthetic bench: `python -m synthetic STUDY ...`.

A study is a module with two functions: `add_arguments(parser)` and `run(options)`, which returns the exit code.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING

from cemverify.console.guard import Run, enter, importing

if TYPE_CHECKING:
    from cemverify.console.parsing import Parser

STUDIES = {
    "recursion": "recursive CEM MLPs on functions of known difficulty, compared with the Bayes-optimal error",
    "language": "small language models, Llama and CEM, on text or on sources of known entropy",
    "examine": "one regression task: its difficulty, a check of its floor, a test of its sampler",
    "atlas": "the difficulty of every prior, by lengthscale and number of points",
}

# Options that say how, where and how long something is computed, with the number of their values: they change nothing
# of what comes of it.
NO_MATTER = {
    **dict.fromkeys(("--store", "--workers", "--cluster", "--shard", "--until", "--output", "--corpora"), 1),
    **dict.fromkeys(("--tflops", "--folder", "--save-every"), 1),
    **dict.fromkeys(("--retry-failed", "--resume", "--no-resume"), 0),
}

DESCRIPTION = """\
Studies of what the recursion depth T and the choice of energy buy. Each prints its tables, reports progress on
stderr, and writes a result file (--output).
"""

EPILOG = """\
examples:
  python -m synthetic recursion --prior rbf --steps 1 2 4 8 --seeds 3 --preset quick --output out/recursion.json
  python -m synthetic language train --preset tiny
  python -m synthetic examine "warped(matern52) + 0.1*linear"
  python -m reports tables out              every result below out/ as tables

Exit code 0; 1 if what was run failed its checks; 2 with one sentence on stderr if the arguments are invalid or a file
cannot be written.
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code."""
    return enter(_chosen, arguments)


def _chosen(given: list[str]) -> Run:
    from cemverify.console.errors import UsageError
    from cemverify.console.parsing import again

    try:
        with importing():
            parser = _parser(given[0] if given else None)
        options = parser.parse_args(given)
        options.again = again(["python", "-m", "synthetic"], given, NO_MATTER)
    except ModuleNotFoundError as error:
        raise UsageError(f"{error.name} is missing; pip install -c constraints.txt -e '.[bench]'") from error

    def run() -> int:
        from cemverify.runs import ShardFinished

        try:
            return int(_module(options.study).run(options))
        except ShardFinished as told:
            print(told, file=sys.stderr)
            return 0

    return run


def _parser(chosen: str | None) -> Parser:
    """The parser. Only the chosen study is imported, because the libraries of a study take seconds to load."""

    from cemverify.console.parsing import Help, Parser

    parser = Parser(
        prog="python -m synthetic",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=Help,
    )
    studies = parser.add_subparsers(dest="study", metavar="STUDY", required=True)
    for name, summary in STUDIES.items():
        study = studies.add_parser(name, help=summary, formatter_class=Help)
        if name == chosen:
            _module(name).add_arguments(study)
    return parser


def _module(study: str) -> ModuleType:
    from importlib import import_module

    return import_module("synthetic.studies.recursion.command" if study == "recursion" else f"synthetic.{study}")


if __name__ == "__main__":
    sys.exit(main())
