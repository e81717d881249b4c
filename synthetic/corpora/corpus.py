"""Turns a source and a tokeniser into files of tokens, once.

A corpus is a folder whose name is derived from its content. It is created under another name and then renamed, so a
folder of that name is always complete: `corpus.json`, which describes it and has checksums, and a file of tokens for
each of its two parts. If a process is killed, its leftovers are removed a day later by the next process that
creates a corpus there.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

import numpy as np

from cemverify.console.errors import UsageError
from cemverify.console.streams import note
from cemverify.processes.atomic_files import replacing, sweep
from synthetic.corpora.sources import Document, DocumentSource, PartName
from synthetic.corpora.tokenisers import Codes, Tokeniser
from synthetic.corpora.tokens import AGAIN, ON_DISK, Tokens, read_tokens

FORMAT = 3  # of the folder and of tokenisation; a new number recreates every corpus
PARTS: tuple[PartName, ...] = ("train", "validation")
DOCUMENTS_AT_ONCE = 256
COUNTS = ("tokens", "bytes", "documents")  # of each part, in corpus.json


@dataclass(frozen=True)
class CorpusPart:
    """One part of a corpus."""

    tokens: Tokens = field(repr=False)  # all of them
    # bytes, documents: what they were made of
    bytes: int
    documents: int

    @property
    def tokens_per_byte(self) -> float:
        """The factor from bits per token to bits per byte."""
        return len(self.tokens) / self.bytes


@dataclass(frozen=True)
class Corpus:
    """Text as tokens, in two parts that share no document."""

    name: str  # in tables
    unit: str  # "byte", or "symbol" for sources that are not text
    vocabulary: int  # V
    # tokeniser, digest: fingerprints of the tokeniser and of all tokens
    tokeniser: str
    digest: str
    train: CorpusPart
    validation: CorpusPart

    @property
    def token(self) -> str:
        """What a token is called: the unit itself, if each unit is one token."""
        return self.unit if len(self.train.tokens) == self.train.bytes else "token"

    def describe(self) -> dict[str, Any]:
        """Name, size and digest of the corpus, as plain values for a result file."""
        names = ("digest", "tokeniser", "vocabulary", "unit")
        return {"source": self.name, **{name: getattr(self, name) for name in names}}


def tokenised(source: DocumentSource, tokeniser: Tokeniser, folder: Path) -> Corpus:
    """The corpus of a source and a tokeniser, created if the folder does not have it yet, with progress on stderr.

    Args:
        folder: where corpora are kept, each in a folder of its own.
    """
    specification = json.dumps({"format": FORMAT, "source": source.key, "unit": source.unit}, sort_keys=True)
    source_digest = hashlib.sha256(specification.encode()).hexdigest()
    name = hashlib.sha256(f"{source_digest} {tokeniser.digest}".encode()).hexdigest()[:24]
    if not (folder / name / "corpus.json").exists():
        note(f"tokenising the {source.name}")
        _make(source, tokeniser, folder, name)
    return _open(folder / name, source, tokeniser)


def _make(source: DocumentSource, tokeniser: Tokeniser, folder: Path, name: str) -> None:
    sweep(folder)
    try:
        with replacing(folder / name) as aside:
            aside.mkdir()
            _fill(aside, source, tokeniser)
    except OSError as error:
        if not (folder / name / "corpus.json").exists():  # otherwise another process made the same one meanwhile
            raise UsageError(
                f"cannot write a corpus to {folder}: {error.strerror or error}; make room, or name another folder"
                " with --corpora"
            ) from error


def _fill(aside: Path, source: DocumentSource, tokeniser: Tokeniser) -> None:
    """Writes the files of a corpus, the description last."""
    with contextlib.ExitStack() as stack:
        files = {part: stack.enter_context(open(aside / f"{part}.tokens", "wb")) for part in PARTS}
        writers = {part: _Writer(files[part], tokeniser.vocabulary) for part in PARTS}
        stream = iter(source.documents())
        while documents := list(islice(stream, DOCUMENTS_AT_ONCE)):
            for document, tokens in zip(documents, tokeniser.encode([d.content for d in documents]), strict=True):
                writers[document.part].take(document, tokens)
            with contextlib.suppress(OSError):
                os.utime(aside)  # a recent time tells other processes that this folder is in use
            note(f"tokenised {sum(w.tokens for w in writers.values()):,} tokens")
        described = {part: writer.finish() for part, writer in writers.items()}
    if empty := [part for part in PARTS if not described[part]["tokens"]]:
        raise UsageError(f"the {source.name} has no text for the {' and the '.join(empty)} part")
    manifest: dict[str, Any] = {part: described[part] for part in PARTS}
    manifest |= {"source": source.key, "tokeniser": tokeniser.digest, "vocabulary": tokeniser.vocabulary}
    (aside / "corpus.json").write_text(json.dumps(manifest, indent=1) + "\n")


class _Writer:
    """Writes the tokens of a part, document by document."""

    def __init__(self, file: IO[bytes], vocabulary: int) -> None:
        self.file, self.vocabulary = file, vocabulary
        self.hashed = hashlib.sha256()
        self.tokens = self.bytes = self.documents = 0

    def take(self, document: Document, tokens: Codes) -> None:
        if len(tokens) and (largest := int(tokens.max())) >= self.vocabulary:
            raise UsageError(
                f"there is a token {largest:,} where each must be below {self.vocabulary:,}, the size of the"
                " vocabulary; take another --tokeniser"
            )
        content = np.ascontiguousarray(tokens, ON_DISK).tobytes()
        self.file.write(content)
        self.hashed.update(content)
        self.tokens += len(tokens)
        self.bytes += len(document.content)
        self.documents += 1

    def finish(self) -> dict[str, Any]:
        self.file.flush()
        os.fsync(self.file.fileno())
        counts = (self.tokens, self.bytes, self.documents)
        return {"sha256": self.hashed.hexdigest(), **dict(zip(COUNTS, counts, strict=True))}


def _open(folder: Path, source: DocumentSource, tokeniser: Tokeniser) -> Corpus:
    path = folder / "corpus.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        described = {part: _described(manifest[part]) for part in PARTS}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; {AGAIN}") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise UsageError(f"{path} is truncated, or was edited; {AGAIN}") from error
    parts = {
        part: CorpusPart(read_tokens(folder / f"{part}.tokens", tokens, sha256), *counts)
        for part, (sha256, tokens, *counts) in described.items()
    }
    hashed = hashlib.sha256("".join(f"{part} {sha256}" for part, (sha256, *_) in described.items()).encode())
    return Corpus(source.name, source.unit, tokeniser.vocabulary, tokeniser.digest, hashed.hexdigest(), **parts)


def _described(content: Any) -> tuple[str, int, int, int]:
    """The checksum of a part, and how many tokens, bytes and documents it has, as corpus.json says.

    Raises:
        KeyError, TypeError, ValueError: the description is damaged.
    """
    tokens, size, documents = counts = [content[name] for name in COUNTS]
    if any(type(count) is not int or count < 1 for count in counts):
        raise ValueError("each part needs at least one token, byte and document")
    if type(content["sha256"]) is not str:
        raise TypeError("each part needs a checksum")
    return content["sha256"], tokens, size, documents
