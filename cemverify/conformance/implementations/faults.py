"""What an implementation can do wrong other than return a wrong number: one small class per kind."""

from __future__ import annotations

_LONGEST = 500


def words(error: BaseException) -> str:
    """Type and message of an exception, whatever its text: printable, one line, cut when long."""
    try:
        text = str(error)
    except BaseException:  # even that may fail
        text = "(its message cannot be read)"
    text = text[: 4 * _LONGEST].encode("utf-8", "backslashreplace").decode("utf-8")
    text = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    text = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


_SHORTAGES = ("can't allocate memory", "cannot allocate memory", "out of memory", "resource_exhausted", "bad_alloc")


def ran_out(error: BaseException) -> bool:
    """Whether an exception says that memory ran out, in Python's words, or those of an allocator below it."""
    if isinstance(error, MemoryError):
        return True
    said = words(error).lower()
    return isinstance(error, RuntimeError | OSError) and any(shortage in said for shortage in _SHORTAGES)


class Fault(Exception):
    """A call that gave no answer to compare; the message is one sentence.

    Attributes:
        cause: the kind of fault, as it stands in result files.
    """

    cause = "fault"


class Raised(Fault):
    """It raised an exception."""

    cause = "raised"


class NotAnArray(Fault):
    """It returned something that is no array."""

    cause = "not an array"


class WrongShape(Fault):
    """It returned an array of another shape."""

    cause = "wrong shape"


class NotFinite(Fault):
    """It returned NaN or infinity where the answer is finite."""

    cause = "not finite"


class Hung(Fault):
    """A single call did not return in time."""

    cause = "hung"


class OutOfMemory(Fault):
    """It asked for more memory than it may have."""

    cause = "out of memory"


class Tampered(Fault):
    """It replaced what everybody computes with, the judge included."""

    cause = "tampered"


class Crashed(Fault):
    """It took the interpreter down."""

    cause = "crashed"


class Discard(Exception):
    """A case outside a property's premise, or too ill-conditioned to judge; counted, never a pass."""
