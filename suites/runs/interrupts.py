"""Processes that can be interrupted, wherever the tests run."""

from __future__ import annotations

import signal


def heed() -> None:
    """For `preexec_fn`: what a shell starts in the background ignores Ctrl-C, and so would all that it starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
