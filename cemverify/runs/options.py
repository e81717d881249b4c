"""How cells are run: where they are kept and who computes them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from cemverify.console.errors import UsageError


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
    """Where cells are kept and who computes them."""

    store: Path = Path("out/store")  # a folder, created if missing
    workers: int = 1  # processes on this machine; 0 computes in this one
    cluster: str | None = None  # address of a Dask scheduler, instead of workers
    shard: Shard | None = None  # compute only this part
    retry_failed: bool = False  # recompute cells that failed before
    resume: bool = True  # use what the store already has

    def __post_init__(self) -> None:
        if self.workers < 0:
            raise UsageError(f"the number of workers is 0 (this process) or more, not {self.workers}")
        if self.cluster is not None and not re.fullmatch(r"(tcp|tls|ws|wss|inproc)://\S+", self.cluster):
            raise UsageError(f"{self.cluster!r} is not the address of a Dask scheduler; give tcp://HOST:PORT")
