"""The implementations of round 2, by name: `cemverify check suites.blind.round_2:NAME`."""

from __future__ import annotations

from cemverify.conformance.implementations.contract import Implementation
from suites.blind.rounds import load


def __getattr__(name: str) -> Implementation:
    if name.startswith("__"):
        raise AttributeError(name)
    try:
        return load(2).implementation(name)
    except KeyError:
        raise AttributeError(f"round 2 has no implementation {name!r}") from None
