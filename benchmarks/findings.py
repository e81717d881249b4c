"""What a benchmark, or a stage of the harvest, has found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cemverify.results.envelope import Table


@dataclass(frozen=True)
class Findings:
    """What has been found so far.

    Attributes:
        tables: for a person. data: for a program. skipped: why nothing was done, if nothing was.
    """

    tables: Sequence[Table] = ()
    data: Mapping[str, Any] | None = None
    skipped: str | None = None
