"""The command line: `cemverify check` and `cemverify list`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from tabulate import tabulate

from cemverify._version import VERSION
from cemverify.conformance import isolation
from cemverify.conformance.contract import FEATURES, LoadError
from cemverify.conformance.engine import Effort, RunFinished
from cemverify.conformance.listeners import files, terminal
from cemverify.conformance.properties import select
from cemverify.conformance.verdicts import counts, exit_code
from cemverify.results import Maker, ResultError, check_writable, write, write_text

DTYPES = {"float64": torch.float64, "float32": torch.float32, "bfloat16": torch.bfloat16}

_CHECK = """\
Asks an implementation about every property of the catalogue that it offers, with examples that Hypothesis
draws and, on a violation, shrinks. Prints one row per property and the smallest counterexample of each
violation.

IMPLEMENTATION is module:attribute (found from the current folder too), or the name of an installed entry point
of the group "cemverify.implementations". Ten lines make one: see the README.

exit code: 0 all hold; 1 some are violated; 2 it could not be judged (bad arguments, an import that fails,
nothing ran, or not conclusively).
"""

_EXAMPLES = """\
examples:
  cemverify check reference                            the reference implementation
  cemverify check mypkg.cem:implementation --json r.json --junit r.xml
  cemverify check mypkg.cem:implementation --properties gradient descent --examples 500 --seed 7
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; bad input is one sentence on stderr and exit code 2."""
    options = _parser().parse_args(arguments)
    run: Callable[[argparse.Namespace], int] = options.run
    try:
        return run(options)
    except (LoadError, ResultError, ValueError) as error:
        print(f"cemverify: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("cemverify: interrupted, nothing was written", file=sys.stderr)
        return 130


def check(options: argparse.Namespace) -> int:
    """`cemverify check`."""
    properties = select(options.properties)
    device = _device(options.device)
    effort = Effort(options.examples, options.seed, options.seconds, options.timeout, DTYPES[options.dtype], device)
    for path in (options.json, options.junit, options.markdown):
        if path is not None:
            check_writable(path)
    sys.path.insert(0, os.getcwd())  # as `python -m` would; workers inherit it
    configuration = {
        "properties": options.properties,
        "examples": effort.examples,
        "seconds": effort.seconds,
        "timeout": effort.timeout,
        "dtype": options.dtype,
        "workers": options.workers,
    }
    command = shlex.join(["cemverify", *(options.arguments or sys.argv[1:])])
    maker = Maker.now(command, configuration, effort.seed, device)
    progress = terminal.Progress()
    finished: RunFinished | None = None
    for event in isolation.run(options.implementation, properties, effort, options.workers):
        progress(event)
        if isinstance(event, RunFinished):
            finished = event
    assert finished is not None
    print(terminal.report(finished))
    if options.json:
        write(options.json, files.as_json(finished, maker))
    if options.junit:
        write_text(options.junit, files.as_junit(finished))
    if options.markdown:
        write_text(options.markdown, files.as_markdown(finished, maker))
    return exit_code(counts(finished.records))


def list_(options: argparse.Namespace) -> int:
    """`cemverify list`."""
    if options.features:
        print(tabulate(FEATURES.items(), ("feature", "what offering it means"), disable_numparse=True))
        return 0
    properties = select(options.properties)
    rows = [
        (p.id, textwrap.fill(p.claim, 52), textwrap.fill(p.source, 28), textwrap.fill(", ".join(sorted(p.needs)), 30))
        for p in properties
    ]
    print(tabulate(rows, ("property", "claim", "source", "needs"), disable_numparse=True))
    print(f"\n{len(properties)} properties. `cemverify list --features` explains what they need.")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cemverify",
        description="Says with evidence whether an implementation of energy-based Transformer layers is right.",
    )
    parser.add_argument("--version", action="version", version=f"cemverify {VERSION}")
    parser.set_defaults(arguments=None)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    c = commands.add_parser(
        "check",
        help="judge an implementation",
        description=_CHECK,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    c.set_defaults(run=check)
    c.add_argument("implementation", metavar="IMPLEMENTATION", help="module:attribute, or an entry point's name")
    c.add_argument(
        "--properties",
        nargs="+",
        default=[],
        metavar="ID",
        help="only these: ids, prefixes (gradient/mlp) or patterns",
    )
    c.add_argument("--examples", type=_positive, default=60, metavar="N", help="examples per property (default 60)")
    c.add_argument("--seed", type=int, default=0, metavar="N", help="everything drawn follows from it (default 0)")
    c.add_argument("--device", default="cpu", metavar="D", help="where torch implementations run: cpu, cuda, cuda:1")
    c.add_argument("--dtype", choices=DTYPES, default="float64", help="what properties without a dtype are asked in")
    c.add_argument("--workers", type=_positive, default=os.cpu_count() or 1, metavar="N", help="worker processes")
    c.add_argument("--seconds", type=float, default=60.0, metavar="S", help="time budget of a property (default 60)")
    c.add_argument(
        "--timeout", type=float, default=20.0, metavar="S", help="a call longer than this hung (default 20)"
    )
    c.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    c.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML, for CI")
    c.add_argument("--markdown", type=Path, metavar="FILE", help="write a page")

    ls = commands.add_parser("list", help="explain the properties", description="Every property with its source.")
    ls.set_defaults(run=list_)
    ls.add_argument("properties", nargs="*", metavar="ID", help="ids, prefixes or patterns; all if none")
    ls.add_argument("--features", action="store_true", help="what an implementation may declare it does not offer")
    return parser


def _positive(text: str) -> int:
    value = int(text) if text.lstrip("-").isdigit() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def _device(name: str) -> str:
    """The device, if it is there.

    Raises:
        ValueError: it is not.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ValueError(f"device {name!r} cannot be used here ({reason}); try cpu") from None
    return str(device)


if __name__ == "__main__":
    sys.exit(main())
