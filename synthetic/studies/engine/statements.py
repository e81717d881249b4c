"""Statements of the paper, and how they fare in a study; each study reads its own by rules of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cemverify.results.envelope import Table

Reading = Literal["agrees", "disagrees", "undecided", "not asked"]


@dataclass(frozen=True)
class Statement:
    """A statement of the paper and how it fares here."""

    text: str  # what the paper says
    found: str  # what was found
    reading: Reading  # whether that agrees


def shown_statements(read: Sequence[Statement]) -> Table:
    """The statements as a table."""
    columns = ("the paper", "here", "reading")
    return Table("The paper's statements", columns, [[s.text, s.found, s.reading] for s in read])
