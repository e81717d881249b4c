"""The implementations of all rounds, by name: `cemverify check suites.blind.faults:NAME`."""

from __future__ import annotations

from cemverify.conformance.implementations.contract import Subject
from suites.blind.rounds import rounds


def __getattr__(name: str) -> Subject:
    for round_ in rounds():
        if name in round_.names:
            return round_.implementation(name)
    raise AttributeError(f"no round has an implementation {name!r}")
