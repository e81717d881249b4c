"""Imported by the server of workers, first of all: it ignores what a terminal sends.

And a worker whose parent is gone before it has begun says nothing. What it needs to begin is gone with its parent,
who ends for a reason of its own and says that.
"""

from __future__ import annotations

import os
import sys
from types import TracebackType

from cemverify.processes.forkserver import FORKS, ignore_terminal

_usual_hook = sys.excepthook


def _hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    frames = []
    while trace is not None:
        frames.append((trace.tb_frame.f_globals.get("__name__"), trace.tb_frame.f_code.co_name))
        trace = trace.tb_next
    if not (issubclass(kind, OSError | EOFError) and ("multiprocessing.spawn", "_main") in frames):
        _usual_hook(kind, error, error.__traceback__)


sys.excepthook = _hook
# whoever looks for a GPU during an import asks its driver: CUDA cannot be used in forks of a process that asked CUDA
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
if FORKS:
    ignore_terminal()
