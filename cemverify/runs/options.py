"""How a study is run: where it is kept and who computes. The same options for every study."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass
from pathlib import Path

from cemverify.cores import cores
from cemverify.errors import UsageError

HOW = "Kill it at any moment: the same command goes on from there."


@dataclass(frozen=True)
class Shard:
    """One of several equal parts of the cells; `number` counts from 1."""

    number: int
    of: int

    def __contains__(self, key: object) -> bool:
        """Whether a cell's key belongs to this part. Keys are hashes, so the parts are about equal."""
        return isinstance(key, str) and int(key[:16], 16) % self.of == self.number - 1


@dataclass(frozen=True)
class RunOptions:
    """Where the cells are kept and who computes them.

    Attributes:
        store: a folder; made where it is missing. workers: processes on this machine; 0 computes in this one.
        cluster: address of a Dask scheduler, instead of workers. shard: compute this part only.
        retry_failed: compute again what failed before. resume: use what the store holds.

    Raises:
        UsageError: a number out of range, or options that contradict each other.
    """

    store: Path = Path("out/store")
    workers: int = 1
    cluster: str | None = None
    shard: Shard | None = None
    retry_failed: bool = False
    resume: bool = True

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise UsageError(f"the number of workers is 0 (this process) or more, not {self.workers}")
        if self.cluster is not None and not re.fullmatch(r"(tcp|tls|ws|wss|inproc)://\S+", self.cluster):
            raise UsageError(f"{self.cluster!r} is not the address of a Dask scheduler; give tcp://HOST:PORT")

    @classmethod
    def of(cls, options: argparse.Namespace) -> RunOptions:
        """What the command line asked for.

        Raises:
            UsageError: the options make no sense.
        """
        if options.cluster is not None and options.workers is not None:
            raise UsageError("--workers starts processes on this machine and --cluster uses others; give one of them")
        workers = cores() if options.workers is None else options.workers
        shard = None if options.shard is None else parse_shard(options.shard)
        return cls(options.store, workers, options.cluster, shard, options.retry_failed, options.resume)


def add_run_arguments(parser: argparse.ArgumentParser, how: str = HOW) -> None:
    """The options of a run, the same for every study; `RunOptions.of` reads them.

    Args:
        how: what the help says of them all.
    """
    group = parser.add_argument_group("how it runs", how)
    group.add_argument(
        "--store",
        type=Path,
        metavar="DIR",
        default=RunOptions.store,
        help="where every finished cell is kept, one file each (default: %(default)s)",
    )
    group.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="processes on this machine, one thread each; 0: in this process, for a debugger (default: one per CPU)",
    )
    group.add_argument(
        "--cluster", metavar="ADDRESS", help="compute on the workers of a Dask scheduler: tcp://HOST:PORT"
    )
    group.add_argument(
        "--shard",
        metavar="I/N",
        help="compute part I of N (1/4 ... 4/4), each in a job of its own, all on one store; "
        "then the same command without --shard prints the table",
    )
    group.add_argument("--retry-failed", action="store_true", help="compute again the cells that failed before")
    group.add_argument(
        "--resume",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="use what the store holds; --no-resume computes every cell again",
    )


def parse_shard(text: str) -> Shard:
    """The shard that "2/8" names.

    Raises:
        UsageError: it names none.
    """
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError(f"--shard {text} names no part; give I/N with I from 1 to N, as in 1/4")
    return Shard(int(match[1]), int(match[2]))
