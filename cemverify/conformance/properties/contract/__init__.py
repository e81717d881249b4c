"""The contract of a CEM implementation, asked of every function over mixed options (docs/contract.md)."""

from __future__ import annotations

from collections.abc import Iterator

from cemverify.conformance.properties.base import Property, stated_in
from cemverify.conformance.properties.contract import arrays, calls


def properties() -> Iterator[Property]:
    """What the contract says of calls: of arguments and answers, and of repeated calls and settings."""
    yield from stated_in(arrays)
    yield from stated_in(calls)
