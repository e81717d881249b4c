"""Tokenisers: documents in, numbers below 65,536 out."""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cemverify.console.errors import UsageError

Codes = NDArray[np.uint16]
LARGEST_VOCABULARY = 2**16  # a token is stored in two bytes


@dataclass(frozen=True)
class Symbols:
    """A token is a byte, or a symbol of a smaller alphabet stored in one."""

    vocabulary: int = 256

    @property
    def digest(self) -> str:
        """A fingerprint: equal digests mean equal tokens."""
        return hashlib.sha256(f"symbols {self.vocabulary}".encode()).hexdigest()

    def encode(self, documents: Sequence[bytes]) -> list[Codes]:
        """The tokens of each document, numbers below `vocabulary`."""
        return [np.frombuffer(document, np.uint8).astype(np.uint16) for document in documents]


@dataclass(frozen=True)
class Subwords:
    """A tokeniser of the tokenizers library; its own post-processor decides what separates documents."""

    tokenizer: Any = field(repr=False)  # a `tokenizers.Tokenizer`

    @property
    def vocabulary(self) -> int:
        """One more than the largest token; that is more than the number of tokens if numbers are left out."""
        return max(self.tokenizer.get_vocab().values(), default=-1) + 1

    @property
    def digest(self) -> str:
        """A fingerprint: equal digests mean equal tokens."""
        return hashlib.sha256(self.tokenizer.to_str().encode()).hexdigest()

    def encode(self, documents: Sequence[bytes]) -> list[Codes]:
        """The tokens of each document, numbers below `vocabulary`."""
        texts = [document.decode("utf-8", errors="replace") for document in documents]
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(texts)]
        # a post-processor may add tokens outside the vocabulary
        if (largest := max(map(max, filter(None, tokens)), default=0)) >= LARGEST_VOCABULARY:
            raise UsageError(
                f"the tokeniser gave the token {largest:,}; corpora hold those below {LARGEST_VOCABULARY:,}; take"
                " another"
            )
        return [np.asarray(ids, np.uint16) for ids in tokens]


Tokeniser = Symbols | Subwords


def subwords(name: str) -> Subwords:
    """The tokeniser in a file (tokenizer.json), or of a repository on the Hugging Face hub.

    The hub is not asked for a name that can only be a file: one that ends in .json, begins with ., ~ or /, or has
    more slashes than owner/name.
    """
    try:
        from tokenizers import Tokenizer
    except ModuleNotFoundError as error:
        raise UsageError(
            "a tokeniser other than bytes needs the extra 'hub': pip install -c constraints.txt -e '.[bench,hub]'"
        ) from error
    path = Path(os.path.expanduser(name))
    local = os.path.isfile(path)  # false if the name is too long
    if not local and (name.endswith(".json") or name.startswith((".", "~", "/")) or name.count("/") > 1):
        raise UsageError(
            f"no file {name}; --tokeniser takes a tokenizer.json, or the owner/name of one on the Hugging Face hub"
        )
    try:
        if local:
            tokenizer = Tokenizer.from_file(str(path))
        else:
            with hushed():
                tokenizer = Tokenizer.from_pretrained(name)
    except Exception as error:  # the library raises bare exceptions
        reason = " ".join(str(error).split())
        why = "the file is not a tokenizer.json" if local else "it is not available from the Hugging Face hub"
        raise UsageError(f"no tokeniser {name!r}: {why} ({reason})") from error
    subwords_ = Subwords(tokenizer)
    if subwords_.vocabulary > LARGEST_VOCABULARY:
        raise UsageError(
            f"the tokeniser {name!r} has tokens up to {subwords_.vocabulary - 1:,}; corpora hold those below"
            f" {LARGEST_VOCABULARY:,}"
        )
    return subwords_


# --- libraries that log what they also raise --------------------------------------------------------


@contextmanager
def hushed() -> Iterator[None]:
    """Suppresses all log lines."""
    before = logging.root.manager.disable
    logging.disable()
    try:
        yield
    finally:
        logging.disable(before)
