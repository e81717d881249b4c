"""The options of `cemverify replay`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cemverify.conformance.implementations import naming

DESCRIPTION = """\
Repeats the test of a counterexample that was saved by `cemverify check --save-counterexamples FOLDER`: the same
numbers, the same property. FILE is the .json file; the .npz file with the arrays must be next to it. The .py file
next to them does the same without cemverify.

exit code: 1 if the property is still violated; 0 if it holds now; 2 if it cannot be judged.
"""


EPILOG = """\
examples:
  cemverify replay out/gradient-attention-plain.json
  cemverify replay out/gradient-attention-plain.json --implementation mypkg.cem:repaired
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify replay`."""
    parser.add_argument("file", type=Path, metavar="FILE", help="the .json of a saved counterexample")
    parser.add_argument(
        "--implementation", metavar="NAME", help="implementation to test (default: the one it was found with)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result file")


def prepare(options: argparse.Namespace) -> None:
    """As `cemverify check`."""
    if options.implementation is not None:
        options.implementation = naming.settled(options.implementation)
