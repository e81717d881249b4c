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


@pytest.mark.parametrize("version", TEXTS)
def test_every_quote_stands_in_its_text(version: str) -> None:
    file = os.environ.get(TEXTS[version])
    if file is None:
        pytest.skip(f"{TEXTS[version]} does not name a file with the text of: {version}")
    there = as_words(Path(file).read_text())
    sources = {claim.id: claim.source for claim in ledger() if claim.source.version == version}
    quotes = {id_: as_words(of.quote) for id_, of in sources.items() if of.wording in ("sentence", "words")}
    assert [id_ for id_, quote in quotes.items() if quote not in there] == []
