"""Statements of the paper, and how they fare in a study; each study reads its own by rules of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from cemverify.results.envelope import Table
from cemverify.results.tables import markdown

Reading = Literal["agrees", "disagrees", "undecided", "not asked"]


@dataclass(frozen=True)
class Statement:
    """A statement of the paper and how it fares here.

    Attributes:
        text: what the paper says. found: what was found. reading: whether that agrees.
    """

    text: str
    found: str
    reading: Reading


def shown_statements(read: Sequence[Statement]) -> str:
    """The statements as a table in Markdown, without a heading."""
    table = Table("", ("the paper", "here", "reading"), [[s.text, s.found, s.reading] for s in read])
    return markdown([table]).partition("\n\n")[2]
