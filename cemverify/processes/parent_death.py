"""Worker processes that do not outlive whoever started them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from multiprocessing import parent_process


def end_with_parent(last: Callable[[], None] = lambda: None) -> None:
    """To be called first in a worker: a parent that is killed cannot dismiss it, and it would wait for ever.

    Args:
        last: what to do before the end.
    """
    threading.Thread(target=_wait, args=(last,), daemon=True).start()


def _wait(last: Callable[[], None]) -> None:
    parent = parent_process()
    if parent is not None:
        parent.join()
        try:
            last()
        finally:
            os._exit(1)
