"""What an implementation can do wrong other than return a wrong number: one small class per kind."""

from __future__ import annotations


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


class Crashed(Fault):
    """It took the interpreter down."""

    cause = "crashed"


class Discard(Exception):
    """A case outside a property's premise, or too ill-conditioned to judge; counted, never a pass."""
