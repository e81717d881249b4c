"""A run under a pinned catalogue: what came after the pin is reported and not enforced."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from cemverify.catalogue import versions
from cemverify.conformance.judging.verdicts import Record


def pin(records: Sequence[Record], version: str | None) -> list[Record]:
    """The records; those of properties newer than that version of the catalogue are marked. None marks nothing."""
    return [replace(r, newer_than=version if versions.is_newer(r.id, version) else None) for r in records]
