"""What a benchmark, or a stage of the harvest, has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cemverify.results.envelope import Table


@dataclass(frozen=True)
class Findings:
    """What has been found so far."""

    tables: Sequence[Table] = ()  # for a person
    data: Mapping[str, Any] | None = None  # for a program
    skipped: str | None = None  # why nothing was done, if nothing was
