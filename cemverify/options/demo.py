"""The description of `cemverify demo`."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
Shows in a few seconds, and without any file, what cemverify does: an attention layer with an easy mistake is tested,
the violation is explained by the smallest case that shows it, and the fixed layer is tested again.

exit code: 0 if the mistake is found and the fixed layer passes, which is what should happen; 1 otherwise.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`cemverify demo` has no options."""
