"""The command line: `cemverify check`, `cemverify list` and `cemverify claims`."""

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
from cemverify.conformance.isolation import cores
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

_CLAIMS = """\
Judges every statement of the paper: holds, holds under a condition, or refuted. Each verdict is computed from
its evidence, gathered now: properties of the reference, symbolic derivations, exact counterexamples, and
searches that find one of the same size unaided. Exit code 1 if some evidence does not stand.
"""

_EXAMPLES = """\
examples:
  cemverify check reference                            the reference implementation
  cemverify check mypkg.cem:implementation --json r.json --junit r.xml
  cemverify check mypkg.cem:implementation --properties gradient descent --examples 500 --seed 7
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code; bad input is one sentence on stderr and exit code 2."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options = _parser().parse_args(given)
    options.command = shlex.join(["cemverify", *given])
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
    effort = Effort(
        options.examples, options.seed, options.seconds, options.timeout, DTYPES[options.dtype], options.device
    )
    _check_outputs(options.json, options.junit, options.markdown)
    torch.set_num_threads(1)  # as in the workers, and as the result says
    sys.path.insert(0, os.getcwd())  # as `python -m` would; workers inherit it
    configuration = {
        "properties": options.properties,
        "examples": effort.examples,
        "seconds": effort.seconds,
        "timeout": effort.timeout,
        "dtype": options.dtype,
        "workers": options.workers,
    }
    maker = Maker.now(options.command, configuration, effort.seed, effort.device)
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
        print("\nThe word before a colon stands for all its members: not_offered=('diagonal',) declares both.")
        return 0
    properties = select(options.properties)
    rows = [
        (p.id, textwrap.fill(p.claim, 52), textwrap.fill(p.source, 28), textwrap.fill(", ".join(sorted(p.needs)), 30))
        for p in properties
    ]
    print(tabulate(rows, ("property", "claim", "source", "needs"), disable_numparse=True))
    print(f"\n{len(properties)} properties. `cemverify list --features` explains what they need.")
    return 0


def claims(options: argparse.Namespace) -> int:
    """`cemverify claims`: 0 if every verdict is decided, 1 if some evidence does not stand."""
    # here, since sympy takes a second to import and no other command needs it
    from cemverify.conformance.claims import Judged, find_claim, judge, ledger
    from cemverify.conformance.listeners import claims as pages

    _check_outputs(options.json, options.markdown, options.latex)
    torch.set_num_threads(1)
    chosen = ledger() if options.claim is None else (find_claim(options.claim),)
    maker = Maker.now(options.command, {"claim": options.claim}, 0, "cpu")
    judged: list[Judged] = []
    for i, claim in enumerate(chosen, 1):
        judged.append(judge(claim))
        print(f"[{i:>{len(str(len(chosen)))}}/{len(chosen)}] {judged[-1].verdict:<26} {claim.id}", file=sys.stderr)
    print(pages.in_full(judged[0]) if options.claim else pages.as_terminal(judged))
    if options.json:
        write(options.json, pages.as_json(judged, maker))
    if options.markdown:
        write_text(options.markdown, pages.as_markdown(judged))
    if options.latex:
        write_text(options.latex, pages.as_latex(judged))
    return 1 if any(j.verdict == "undecided" for j in judged) else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="cemverify",
        description="Says with evidence whether an implementation of energy-based Transformer layers is right.",
    )
    parser.add_argument("--version", action="version", version=f"cemverify {VERSION}")
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
    c.add_argument(
        "--workers", type=_positive, default=cores(), metavar="N", help="worker processes (default: one per core)"
    )
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

    cl = commands.add_parser("claims", help="what the paper states, and what is true", description=_CLAIMS)
    cl.set_defaults(run=claims)
    cl.add_argument(
        "claim", nargs="?", metavar="ID", help="print this one in full, its counterexample worked through"
    )
    cl.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    cl.add_argument("--markdown", type=Path, metavar="FILE", help="write the page")
    cl.add_argument("--latex", type=Path, metavar="FILE", help="write a LaTeX table")
    return parser


def _positive(text: str) -> int:
    value = int(text) if text.isdecimal() else 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return value


def _check_outputs(*paths: Path | None) -> None:
    """Refuses outputs that cannot be written, or would overwrite each other, before the work.

    Raises:
        ResultError: a path cannot be written. ValueError: two are the same.
    """
    given = [path for path in paths if path is not None]
    for path in given:
        check_writable(path)
    if len({path.absolute() for path in given}) < len(given):
        raise ValueError("two outputs have the same path; name each its own")


if __name__ == "__main__":
    sys.exit(main())
