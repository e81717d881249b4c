"""The options of `cemverify list`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cemverify.options import completers

DESCRIPTION = """\
Lists the properties with their sources, the features that an implementation can have, or the contract. With the full
id of one property, explains it: its claim and formula, why it matters, how it is tested, which mutants it kills, and
how a violation looks (which takes a few seconds: a mutant is tested).
"""

EPILOG = """\
examples:
  cemverify list                                 every property
  cemverify list gradient 'structure/*/caus*'    some of them
  cemverify list gradient/attention/alibi        one in full
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify list`."""
    chosen = parser.add_argument("properties", nargs="*", metavar="ID", help="ids, prefixes or patterns; all if none")
    completers.complete_with(chosen, completers.property_ids)
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--features", action="store_true", help="list the features that can be named in not_offered")
    instead.add_argument(
        "--contract", action="store_true", help="print what an implementation must do and must not do, as Markdown"
    )
    newer = parser.add_argument(
        "--newer-than", metavar="VERSION", help="only what came after this version of the catalogue, which CI may pin"
    )
    completers.complete_with(newer, completers.versions)
    parser.add_argument("--json", type=Path, metavar="PATH", help="write the properties as a result file")
