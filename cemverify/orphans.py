"""Worker processes that do not outlive whoever started them."""

from __future__ import annotations

import os
import threading
from multiprocessing import parent_process


def end_with_parent() -> None:
    """To be called first in a worker: a parent that is killed cannot dismiss it, and it would wait for ever."""
    threading.Thread(target=_wait, daemon=True).start()


def _wait() -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
