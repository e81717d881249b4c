"""Quotes are verbatim, which can be checked where the texts are: they are not ours to ship.

CEMVERIFY_DRAFT=draft.txt CEMVERIFY_ABSTRACT=abstract.txt python -m pytest suites/claims/test_quotes.py
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cemverify.claims import ledger
from cemverify.claims.base import ARXIV, DRAFT

# the version, and the environment variable that names a file of its text
TEXTS = {DRAFT: "CEMVERIFY_DRAFT", ARXIV: "CEMVERIFY_ABSTRACT"}


def as_words(text: str) -> str:
    """White space is one blank, and the dollars round a formula are left out."""
    return " ".join(text.replace("$", "").split())


def not_verbatim(version: str, text: str) -> list[str]:
    """The claims whose quote from that version does not stand in its text."""
    there = as_words(text)
    return [
        claim.id
        for claim in ledger()
        if claim.source.version == version and claim.source.wording in ("sentence", "words")
        if as_words(claim.source.quote) not in there
    ]


@pytest.mark.parametrize("version", TEXTS)
def test_every_quote_stands_in_its_text(version: str) -> None:
    file = os.environ.get(TEXTS[version])
    if file is None:
        pytest.skip(f"{TEXTS[version]} does not name a file with the text of: {version}")
    assert not_verbatim(version, Path(file).read_text()) == []


@pytest.mark.parametrize("version", TEXTS)
def test_a_quote_that_is_changed_is_named(version: str) -> None:
    quotes = {c.id: c.source.quote for c in ledger() if c.source.version == version}
    assert not_verbatim(version, "\n".join(quotes.values())) == []
    changed = next(c.id for c in ledger() if c.source.version == version and c.source.wording == "sentence")
    rest = [quote for id_, quote in quotes.items() if quote != quotes[changed]]
    assert changed in not_verbatim(version, "\n".join([*rest, " ".join(quotes[changed].split()[1:])]))
