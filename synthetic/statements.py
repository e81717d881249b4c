"""Statements of the paper, and how they fare in a study; each study reads its own by rules of its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

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
