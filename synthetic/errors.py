"""What a study says when it cannot do as it was asked."""

from __future__ import annotations


class UsageError(Exception):
    """Bad input; the message is one sentence: what was given, what is allowed, what to do."""
