"""The options of `cemverify check`."""

from __future__ import annotations

import argparse
from pathlib import Path

from cemverify.conformance.implementations import naming
from cemverify.conformance.workers.limits import USUAL_MEMORY
from cemverify.console.parsing import MOST_WORKERS, count, positive, seed, whole
from cemverify.options import completers, gate, trained
from cemverify.options.completers import complete_with
from cemverify.processes.cores import cores

DESCRIPTION = """\
Tests an implementation against every property whose features it offers, with examples drawn by Hypothesis. Prints one
row per family of properties, one per property that does not hold and, for each violation, the smallest counterexample
that was found. With --checkpoint, judges a layer of a trained model instead, on what the model feeds it.

IMPLEMENTATION is module:attribute (also found in the current folder), file.py:attribute, or the name of an installed
entry point of the group "cemverify.implementations". The README shows how to write one in twenty lines.

exit code: 0 if all properties hold, apart from known violations; 1 if some are violated, an entry of --known is
stale, or --on-regression fail found a regression; 2 if there is no verdict (bad arguments, a failed import, nothing
was run, or a property was inconclusive).
"""


EPILOG = """\
examples:
  cemverify check reference                            the reference implementation
  cemverify check mypkg.cem:implementation --json r.json --junit r.xml
  cemverify check mypkg.cem:implementation --properties gradient descent --examples 500 --seed 7
  cemverify check mypkg.cem:implementation --known known.toml --update-known --reason "slopes: ticket 12"
  cemverify check mypkg.cem:implementation --known known.toml --baseline main.json --on-regression fail
  cemverify check mypkg.model:build --checkpoint weights.safetensors --layer blocks.0.attention --tokens text.npy
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify check`."""
    tested = parser.add_argument(
        "implementation",
        metavar="IMPLEMENTATION",
        help="module:attribute, file.py:attribute, or an entry point's name",
    )
    complete_with(tested, completers.implementations)
    chosen = parser.add_argument(
        "--properties",
        nargs="+",
        default=[],
        metavar="ID",
        help="test only these: ids, prefixes (gradient/mlp) or patterns",
    )
    complete_with(chosen, completers.property_ids)
    parser.add_argument("--examples", type=count, default=60, metavar="N", help="examples per property (default 60)")
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="seed of everything that is drawn (default 0)"
    )
    device = parser.add_argument(
        "--device",
        default="cpu",
        metavar="D",
        help="device for torch implementations: cpu, cuda, cuda:1 (default cpu)",
    )
    complete_with(device, completers.devices)
    parser.add_argument(
        "--dtype",
        choices=("float64", "float32", "bfloat16"),
        default="float64",
        help="dtype of properties that have none of their own (default float64)",
    )
    parser.add_argument(
        "--workers",
        type=whole(1, MOST_WORKERS),
        default=cores(),
        metavar="N",
        help="worker processes (default: one per core)",
    )
    parser.add_argument(
        "--seconds",
        type=positive,
        default=60.0,
        metavar="S",
        help="time limit for each property, in seconds (default 60)",
    )
    parser.add_argument(
        "--timeout",
        type=positive,
        default=20.0,
        metavar="S",
        help="seconds after which a call counts as hung (default 20)",
    )
    parser.add_argument(
        "--memory",
        type=count,
        metavar="MB",
        help=f"memory limit of each worker, on Linux (default {USUAL_MEMORY} on the CPU, none on other devices)",
    )
    parser.add_argument(
        "-v", "--verbose", action="store_true", help="show every property, also where a whole family holds"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the result file")
    parser.add_argument("--junit", type=Path, metavar="FILE", help="write JUnit XML, for CI")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a Markdown page")
    parser.add_argument(
        "--save-counterexamples",
        type=Path,
        metavar="FOLDER",
        help="save the smallest case of each violation: arrays, JSON for `cemverify replay`, and a script",
    )
    trained.add_arguments(parser)
    gate.add_arguments(parser)


def prepare(options: argparse.Namespace) -> None:
    """Refuses a name under which there is nothing."""
    options.implementation = naming.settled(options.implementation)
