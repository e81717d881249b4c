"""The contract of a CEM implementation, asked of every function over mixed options (docs/contract.md)."""

from __future__ import annotations

from collections.abc import Iterator

from cemverify.conformance.properties.base import Property
from cemverify.conformance.properties.contract import answers, arguments, calls, memory, settings


def properties() -> Iterator[Property]:
    """What the contract says of calls: of arguments, answers, repeated calls, memory and settings, in this order."""
    for part in (arguments, answers, calls, memory, settings):
        yield from part.properties()
