"""What a command raises when it cannot do what it was asked to do."""

from __future__ import annotations


class Refusal(Exception):
    """A command cannot do what it was asked to do.

    The message is one sentence: what was given, what is allowed, what to do.
    """


class UsageError(Refusal):
    """Bad input.

    Args:
        message: the sentence. usage: the usage line of the command, where its arguments cannot be read.
    """

    def __init__(self, message: str = "", usage: str = "") -> None:
        super().__init__(message)
        self.usage = usage
