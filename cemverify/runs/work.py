"""What a worker does with a cell: restore the specification, compute, and report the outcome with its provenance."""

from __future__ import annotations

import os
import platform
import socket
import sys
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from cemverify.console.errors import UsageError
from cemverify.runs.cells import Cell, algorithm_of
from cemverify.runs.plain import plain
from cemverify.runs.store import Failure

# The side file gives the versions of these libraries, if the cell has loaded them.
LIBRARIES = ("torch", "numpy", "scipy", "sklearn", "gpytorch", "linear_operator", "hypothesis", "jax", "transformers")


@dataclass(frozen=True)
class CellOutcome:
    """The outcome of a cell."""

    content: Mapping[str, Any] | Failure  # the payload, or why there is none
    made_by: Mapping[str, Any]  # the side file's content


def compute(cell: Cell) -> CellOutcome:
    """Computes a cell. Whatever its algorithm raises becomes a failure, except a UsageError."""
    algorithm = algorithm_of(cell)
    if dict(algorithm.versions) != dict(cell.versions):
        raise UsageError(
            f"{cell.algorithm} was asked for in the versions {dict(cell.versions)}, and {socket.gethostname()} has "
            f"{dict(algorithm.versions)}; install the same code everywhere"
        )
    spec = algorithm.restore(cell.spec)
    if (torch := sys.modules.get("torch")) is not None:
        torch.set_num_threads(1)  # faster on tensors this small, and the same bits whatever the number of workers
    created, started = datetime.now(UTC), time.monotonic()
    try:
        payload = plain(algorithm(spec), "payload")
        if not isinstance(payload, dict):
            raise TypeError(f"a payload is a mapping, not {type(payload).__name__}")
        outcome: Mapping[str, Any] | Failure = payload
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        outcome = Failure(f"{type(error).__name__}: {error}".strip(), traceback.format_exc())
    return CellOutcome(outcome, _made_by(cell, created, time.monotonic() - started))


def _made_by(cell: Cell, created: datetime, seconds: float) -> dict[str, Any]:
    versions = {name: getattr(sys.modules[name], "__version__", "?") for name in LIBRARIES if name in sys.modules}
    return {
        "label": cell.label,
        "created": created.isoformat(timespec="seconds"),
        "seconds": round(seconds, 3),
        "host": socket.gethostname(),
        "process": os.getpid(),
        "machine": f"{platform.system()} {platform.machine()}",
        "versions": {"python": platform.python_version(), **versions},
    }
