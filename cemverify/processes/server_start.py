"""The first import of the server of workers: it ignores signals from the terminal.

And a worker whose parent is gone before the worker has begun prints nothing. What it needs is gone with its parent,
which ends for a reason of its own and reports that.
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
# imports that look for a GPU ask its driver, not CUDA, which cannot be used in forks of a process that asked it
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
if FORKS:
    ignore_terminal()
