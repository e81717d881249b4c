"""A source and a tokeniser made into shards, once.

A corpus is a folder named by what it is made of. It is made aside and renamed, so that a folder of that name is a
whole corpus: `corpus.json`, what is known of it, and the shards of its two parts. What a killed process left aside
is removed by the next one that makes a corpus there, a day later.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import re
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

from cemverify.errors import UsageError
from synthetic.corpora.shards import AGAIN, TOKENS_PER_SHARD, Tokens, read_header, read_shard, write_shard
from synthetic.corpora.sources import Document, PartName, Source
from synthetic.corpora.tokenisers import Codes, Tokeniser
from synthetic.corpora.yardsticks import Compressors

FORMAT = 1  # of the folder and of how documents become tokens; another number makes every corpus anew
PARTS: tuple[PartName, ...] = ("train", "validation")
DOCUMENTS_AT_ONCE = 256
ABANDONED_SECONDS = 24 * 3600  # the time of a folder aside is set anew with every few documents
_ASIDE = re.compile(r"\.[0-9a-f]{24}\.[0-9a-f]{32}")

Report = Callable[[str], None]


@dataclass(frozen=True)
class Part:
    """One part of a corpus.

    Attributes:
        tokens: all of them. bytes, documents: what they were made of.
        compressed: bits per byte of gzip and xz; of the validation part only.
    """

    tokens: Tokens = field(repr=False)
    bytes: int
    documents: int
    compressed: Mapping[str, float]

    @property
    def tokens_per_byte(self) -> float:
        """What turns bits per token into bits per byte."""
        return len(self.tokens) / self.bytes


@dataclass(frozen=True)
class Entry:
    """What corpus.json says of a part.

    Attributes:
        shards: their names. tokens, bytes, documents, compressed: as of the part.
    """

    shards: tuple[str, ...]
    tokens: int
    bytes: int
    documents: int
    compressed: Mapping[str, float]

    @classmethod
    def of(cls, said: Any) -> Entry:
        """Of what was read.

        Raises:
            KeyError, TypeError, ValueError: it is not what was written.
        """
        entry = cls(**{f.name: said[f.name] for f in fields(cls)})
        if any(type(count) is not int or count < 1 for count in (entry.tokens, entry.bytes, entry.documents)):
            raise ValueError("no part is without tokens, bytes and documents")
        compressed = {name: float(bits) for name, bits in dict(entry.compressed).items()}
        return replace(entry, shards=tuple(map(str, entry.shards)), compressed=compressed)


@dataclass(frozen=True)
class Corpus:
    """Text as tokens, in two parts that share no document.

    Attributes:
        name: what tables call it. unit: "byte", or "symbol" for sources that are no text.
        vocabulary: V. tokeniser, digest: fingerprints of the tokeniser and of all tokens.
    """

    name: str
    unit: str
    vocabulary: int
    tokeniser: str
    digest: str
    train: Part
    validation: Part

    @property
    def token(self) -> str:
        """What a token is called: the unit itself, where each is one token."""
        return self.unit if len(self.train.tokens) == self.train.bytes else "token"

    def describe(self) -> dict[str, Any]:
        """What it is, as JSON."""
        return {
            "source": self.name,
            "digest": self.digest,
            "tokeniser": self.tokeniser,
            "vocabulary": self.vocabulary,
            "unit": self.unit,
        }


def tokenised(source: Source, tokeniser: Tokeniser, folder: Path, report: Report = lambda _line: None) -> Corpus:
    """The corpus of a source and a tokeniser; made, if the folder does not have it yet.

    Args:
        folder: where corpora are kept, each in a folder of its own.
        report: told what is being made, which may take a while.

    Raises:
        UsageError: a part is empty, a shard cannot be written, or a file that is there is truncated or corrupt.
    """
    specification = json.dumps({"format": FORMAT, "source": source.key, "unit": source.unit}, sort_keys=True)
    source_digest = hashlib.sha256(specification.encode()).hexdigest()
    name = hashlib.sha256(f"{source_digest} {tokeniser.digest}".encode()).hexdigest()[:24]
    if not (folder / name / "corpus.json").exists():
        report(f"tokenising the {source.name}")
        _make(source, tokeniser, folder, name, source_digest, report)
    return _open(folder / name, source, tokeniser)


def _make(source: Source, tokeniser: Tokeniser, folder: Path, name: str, source_digest: str, report: Report) -> None:
    _sweep(folder)
    aside = folder / f".{name}.{uuid4().hex}"
    try:
        aside.mkdir(parents=True)
    except OSError as error:
        raise _unwritable("a corpus", folder, error) from error
    try:
        writers = {part: _Writer(aside, part, tokeniser, source_digest) for part in PARTS}
        for documents in _grouped(source.documents()):
            for document, tokens in zip(documents, tokeniser.encode([d.content for d in documents]), strict=True):
                writers[document.part].take(document, tokens)
            with contextlib.suppress(OSError):
                os.utime(aside)  # somebody is at work here
            report(f"tokenised {sum(w.tokens for w in writers.values()):,} tokens")
        entries = {part: writer.finish() for part, writer in writers.items()}
        if empty := [part for part in PARTS if not entries[part].tokens]:
            raise UsageError(f"the {source.name} has no text for the {' and the '.join(empty)} part")
        manifest: dict[str, Any] = {part: asdict(entry) for part, entry in entries.items()}
        manifest |= {"source": source.key, "tokeniser": tokeniser.digest, "vocabulary": tokeniser.vocabulary}
        try:
            (aside / "corpus.json").write_text(json.dumps(manifest, indent=1) + "\n")
        except OSError as error:
            raise _unwritable("corpus.json", folder, error) from error
        with contextlib.suppress(OSError):  # somebody else was faster: theirs is the same
            os.replace(aside, folder / name)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def _sweep(folder: Path) -> None:
    """Removes what nobody has written to for a day: whoever began it was killed, on this machine or another."""
    with contextlib.suppress(OSError):  # no folder yet, or swept by somebody else
        for path in folder.iterdir():
            if _ASIDE.fullmatch(path.name) and time.time() - path.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(path, ignore_errors=True)


def _unwritable(what: str, folder: Path, error: OSError) -> UsageError:
    """Names the folder that was asked for, as the one aside is gone by the time this is read."""
    return UsageError(
        f"cannot write {what} to {folder}: {error.strerror or error}; make room, or name another folder with"
        " --corpora"
    )


class _Writer:
    """Gathers the tokens of a part and writes a shard whenever there are enough for one."""

    def __init__(self, folder: Path, part: PartName, tokeniser: Tokeniser, source_digest: str) -> None:
        self.folder, self.part, self.tokeniser, self.source_digest = folder, part, tokeniser, source_digest
        self.waiting: list[Codes] = []
        self.shards: list[str] = []
        self.tokens = self.written = self.bytes = self.documents = 0
        self.compressors = Compressors() if part == "validation" else None

    def take(self, document: Document, tokens: Codes) -> None:
        self.waiting.append(tokens)
        self.tokens += len(tokens)
        self.bytes += len(document.content)
        self.documents += 1
        if self.compressors:
            self.compressors.feed(document.content)
        while self.tokens - self.written >= TOKENS_PER_SHARD:
            self._write(TOKENS_PER_SHARD)

    def finish(self) -> Entry:
        if self.tokens > self.written:
            self._write(self.tokens - self.written)
        compressed = self.compressors.bits_per_byte() if self.compressors else {}
        return Entry(tuple(self.shards), self.tokens, self.bytes, self.documents, compressed)

    def _write(self, count: int) -> None:
        waiting = np.concatenate(self.waiting)
        name = f"{self.part}-{len(self.shards):05}.tokens"
        tokeniser = self.tokeniser
        try:
            write_shard(
                self.folder / name, waiting[:count], tokeniser.vocabulary, tokeniser.digest, self.source_digest
            )
        except OSError as error:
            what = f"a shard of {math.ceil(2 * count / 1000):,} kB"
            raise _unwritable(what, self.folder.parent, error) from error
        self.shards.append(name)
        self.written += count
        self.waiting = [waiting[count:]]


def _open(folder: Path, source: Source, tokeniser: Tokeniser) -> Corpus:
    path = folder / "corpus.json"
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        entries = {part: Entry.of(manifest[part]) for part in PARTS}
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}; {AGAIN}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(f"{path} is truncated, or was edited; {AGAIN}") from error
    parts = {part: _part(folder, entry, tokeniser) for part, entry in entries.items()}
    hashed = hashlib.sha256()
    for part, entry in entries.items():
        for shard in entry.shards:
            hashed.update(f"{part} {read_header(folder / shard).checksum}".encode())
    return Corpus(source.name, source.unit, tokeniser.vocabulary, tokeniser.digest, hashed.hexdigest(), **parts)


def _part(folder: Path, entry: Entry, tokeniser: Tokeniser) -> Part:
    tokens = Tokens(tuple(read_shard(folder / name, tokeniser.digest) for name in entry.shards))
    if len(tokens) != entry.tokens:
        raise UsageError(
            f"{folder / 'corpus.json'} promises {entry.tokens:,} tokens, its shards hold {len(tokens):,}; {AGAIN}"
        )
    return Part(tokens, entry.bytes, entry.documents, entry.compressed)


def _grouped(documents: Any) -> Iterator[list[Document]]:
    group: list[Document] = []
    for document in documents:
        group.append(document)
        if len(group) == DOCUMENTS_AT_ONCE:
            yield group
            group = []
    if group:
        yield group
