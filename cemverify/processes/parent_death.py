"""Worker processes that do not outlive whoever started them."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from multiprocessing import parent_process


def end_with_parent(last: Callable[[], None] = lambda: None) -> None:
    """A worker calls this first: if its parent is killed, nobody can dismiss it, and it would wait for ever.

    Args:
        last: what to do before it ends.
    """

    def wait() -> None:
        if (parent := parent_process()) is not None:
            parent.join()
            try:
                last()
            finally:
                os._exit(1)

    threading.Thread(target=wait, daemon=True).start()
