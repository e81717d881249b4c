"""What a command raises if it cannot do what it was asked to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

Value = TypeVar("Value")


class Refusal(Exception):
    """A command cannot do what it was asked to do.

    The message is one sentence: what was given, what is allowed, what to do.
    """


class UsageError(Refusal):
    """Bad input.

    Args:
        message: the sentence. usage: the command's usage line, if its arguments cannot be read.
    """

    def __init__(self, message: str = "", usage: str = "") -> None:
        super().__init__(message)
        self.usage = usage


def one_of(noun: str, name: str, values: Mapping[str, Value], more: str = "") -> Value:
    """The value that a name stands for.

    Args:
        noun: what the name is for, in a sentence: "preset". more: what else is allowed, after the names.
    """
    if name not in values:
        raise UsageError(f"unknown {noun} {name!r}; choose from {', '.join(values)}{more}")
    return values[name]
