"""The arguments that all commands with cells take, so that they all run in the same way."""

from __future__ import annotations

import argparse
import re

from cemverify.console.errors import UsageError
from cemverify.console.parsing import path, workers
from cemverify.processes.cores import cores
from cemverify.runs.options import RunOptions, Shard

HOW = "Stop it at any moment; the same command continues from there."


def add_run_arguments(parser: argparse.ArgumentParser, how: str | None = HOW) -> None:
    """Adds --store, --workers, --cluster, --shard, --retry-failed and --resume; `run_options` reads them.

    Args:
        how: what the help says about them as a group; None says nothing.
    """
    group = parser.add_argument_group("how it runs", how)
    group.add_argument(
        "--store",
        type=path,
        metavar="DIR",
        default=RunOptions.store,
        help="where finished cells are kept, one file each (default: %(default)s)",
    )
    group.add_argument(
        "--workers",
        type=workers,
        metavar="N",
        help="processes of one thread each; 0: only this one (default: one for each CPU)",
    )
    group.add_argument(
        "--cluster", metavar="ADDRESS", help="compute on the workers of a Dask scheduler: tcp://HOST:PORT"
    )
    group.add_argument(
        "--shard", metavar="I/N", help="compute only part I of N, where a study allows it; omit it for the tables"
    )
    group.add_argument("--retry-failed", action="store_true", help="compute failed cells again")
    group.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use what is in the store; --no-resume computes every cell again",
    )


def run_options(options: argparse.Namespace) -> RunOptions:
    """What the command line asks for."""
    if options.cluster is not None and options.workers is not None:
        raise UsageError("--workers starts processes on this machine and --cluster uses others; give one of them")
    processes = cores() if options.workers is None else options.workers
    shard = None if options.shard is None else parse_shard(options.shard)
    return RunOptions(options.store, processes, options.cluster, shard, options.retry_failed, options.resume)


def parse_shard(text: str) -> Shard:
    """The shard that "2/8" names."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard {text} names no part; give I/N with I from 1 to N, as in 1/4")
    return Shard(int(match[1]), int(match[2]))
