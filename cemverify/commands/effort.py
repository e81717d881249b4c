"""What to ask of an implementation, and how much: the options that `check` and `repair` share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from cemverify.catalogue.index import listed, retired_by
from cemverify.commands import completers
from cemverify.commands.completers import complete_with
from cemverify.conformance.workers.limits import USUAL_MEMORY, check_memory, usual_memory
from cemverify.console.parsing import MOST_WORKERS, count, seconds, seed, whole
from cemverify.console.streams import note
from cemverify.processes.cores import cores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cemverify.conformance.judging.effort import Effort
    from cemverify.conformance.judging.verdicts import Record
    from cemverify.conformance.properties import Property


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The implementation, its properties, and the effort."""
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
    parser.add_argument(
        "--properties-from",
        nargs="+",
        default=[],
        metavar="FILE",
        help="also test your own properties, stated in these files or modules; their ids begin with own/",
    )
    parser.add_argument(
        "--examples", type=count, default=60, metavar="N", help="how thoroughly each property is tested (default 60)"
    )
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
        type=seconds,
        default=60.0,
        metavar="S",
        help="seconds that each property may take, without waits for a core (default 60)",
    )
    parser.add_argument(
        "--timeout",
        type=seconds,
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


def refuse_unknown_properties(options: argparse.Namespace) -> None:
    """Refuses ids that match nothing before anything is started, unless given files may state them."""
    from cemverify.conformance.properties import select

    for row in retired_by(options.properties, (property_.id for property_ in listed())):
        note(str(row))
    if not options.properties_from:
        select(options.properties)


def properties(options: argparse.Namespace) -> tuple[Property, ...]:
    """The properties that the options choose, including the user's own."""
    from cemverify.conformance.properties import own_properties, select

    return select(options.properties, own_properties(options.properties_from))


def note_own_dtypes(options: argparse.Namespace, properties: Sequence[Property], records: Sequence[Record]) -> None:
    """Says how many of the tested properties --dtype does not affect."""
    asked = {record.id for record in records if record.examples}
    own = [p for p in properties if p.id in asked and p.dtype is not None]
    if options.dtype != "float64" and own:
        concerned = f"{len(asked) - len(own) or 'none'} of these {len(asked)} properties"
        why = f"{len(own)} have a dtype of their own; `--properties precision` asks in low precision"
        note(f"--dtype {options.dtype} concerns {concerned}: {why}")


def of(options: argparse.Namespace, *, reads_code: bool = False) -> Effort:
    """The effort that the options ask for.

    Args:
        reads_code: whether to read the implementation's own code.

    Raises:
        ValueError: the device does not exist, or memory cannot be limited to that.
    """
    import torch

    from cemverify.conformance.judging.effort import Effort
    from cemverify.processes.devices import check_device

    check_device(options.device)
    effort = Effort(
        options.examples,
        options.seed,
        options.seconds,
        options.timeout,
        getattr(torch, options.dtype),
        options.device,
        memory=options.memory or usual_memory(options.device),
        reads_code=reads_code,
    )
    check_memory(effort.memory)
    return effort


def configuration(options: argparse.Namespace, effort: Effort) -> dict[str, Any]:
    """The options, as a result file keeps them."""
    return {
        "properties": options.properties,
        **({"properties_from": options.properties_from} if options.properties_from else {}),
        **{name: getattr(effort, name) for name in ("examples", "seconds", "timeout", "memory")},
        "dtype": options.dtype,
        "workers": options.workers,
    }
