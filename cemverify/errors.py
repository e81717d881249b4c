"""What a command raises when it cannot do what it was asked to do."""

from __future__ import annotations


class UsageError(Exception):
    """Bad input. The message is one sentence: what was given, what is allowed, what to do."""
