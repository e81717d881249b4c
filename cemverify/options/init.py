"""The options of `cemverify init`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cemverify.start.recipes import RECIPES
from cemverify.start.writing import STEMS

DESCRIPTION = """\
Writes three files to start from: an adapter, which is where your layer meets the verifier; a test file for pytest;
and a recipe for CI. The adapter is a small correct layer with the shapes in comments. It is checked at once, so that
you see what a pass looks like; then put your own code in its place. Nothing is overwritten.

kinds:
  cem      functions of arrays with CEM's weights (the example is NumPy; torch and JAX work alike)
  module   nn.Modules with CEM's weights
  energy   any other layer that claims to go down an energy (the example is a modern Hopfield layer)

exit code: as for `cemverify check`; 2 if the adapter or its tests exist, or a file cannot be written. A recipe for CI
that exists is left as it is, and what to add to it is printed.
"""


EPILOG = """\
examples:
  cemverify init                                  cem_layer.py, test_cem_layer.py and a GitHub workflow
  cemverify init --kind energy --name my_energy --ci tox
  cemverify init --kind module --ci none --no-check
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify init`."""
    parser.add_argument("--kind", choices=STEMS, default="cem", help="what you have (default cem)")
    parser.add_argument("--name", metavar="NAME", help="of the adapter's module (default KIND_layer)")
    parser.add_argument(
        "--folder", type=Path, default=Path(), metavar="DIR", help="where to write (default: the current folder)"
    )
    parser.add_argument(
        "--ci", choices=[*RECIPES, "none"], default="github", help="the CI service of the recipe (default github)"
    )
    parser.add_argument(
        "--check", action=argparse.BooleanOptionalAction, default=True, help="check the adapter when it is written"
    )
