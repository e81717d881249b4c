"""Shards: tokens on disk as two-byte numbers, behind a header that says what they are and a checksum.

    magic         8 bytes   "CEMTOKEN"
    version       uint32    1
    width         uint32    bytes of a token, 2
    vocabulary    uint32    every token is below it
    (padding)     uint32
    tokens        uint64    how many follow
    tokeniser     32 bytes  its digest
    source        32 bytes  the digest of the source's specification
    checksum      32 bytes  SHA-256 of the tokens
    (padding)               up to 256 bytes; all numbers little-endian

A shard is written aside and renamed, and read through a memory map after its checksum was verified: once by each
process, and again if the file has another size or time than it had.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor

from cemverify.errors import UsageError
from synthetic.corpora.tokenisers import Codes

MAGIC = b"CEMTOKEN"
VERSION = 1
HEADER_BYTES = 256
TOKENS_PER_SHARD = 2**27  # 256 MiB
AGAIN = "delete its folder, and it is made again"  # what to do about a damaged corpus
_HEADER = struct.Struct("<8sIIIIQ32s32s32s")
_ON_DISK = np.dtype("<u2")
_verified: set[tuple[Path, int, int, str]] = set()  # path, size, time in ns and checksum of shards found sound


@dataclass(frozen=True)
class Header:
    """What a shard says of itself; digests and checksum as hexadecimal digits."""

    vocabulary: int
    tokens: int
    tokeniser: str
    source: str
    checksum: str

    def pack(self) -> bytes:
        """The header's 256 bytes."""
        digests = (bytes.fromhex(digest) for digest in (self.tokeniser, self.source, self.checksum))
        packed = _HEADER.pack(MAGIC, VERSION, _ON_DISK.itemsize, self.vocabulary, 0, self.tokens, *digests)
        return packed.ljust(HEADER_BYTES, b"\0")


@dataclass(frozen=True)
class Tokens:
    """A sequence of tokens that may lie in several shards.

    Attributes:
        shards: arrays (n,) of uint16, one after another; memory maps, if they were read.
    """

    shards: tuple[Codes, ...]

    def __len__(self) -> int:
        return sum(map(len, self.shards))

    def windows(self, starts: Sequence[int], length: int) -> Tensor:
        """The windows of `length` tokens that begin at `starts`: (W, length) of int64."""
        out = np.empty((len(starts), length), np.int64)
        ends = np.cumsum([len(shard) for shard in self.shards])
        for row, start in zip(out, starts, strict=True):
            filled = 0
            while filled < length:  # a window may lie across shards
                i = int(np.searchsorted(ends, start + filled, side="right"))
                offset = start + filled - (ends[i] - len(self.shards[i]))
                piece = self.shards[i][offset : offset + length - filled]
                row[filled : filled + len(piece)] = piece
                filled += len(piece)
        return torch.from_numpy(out)

    def head(self, count: int) -> Codes:
        """The first `count` tokens, or all there are, as one array."""
        taken: list[Codes] = []
        for shard in self.shards:
            taken.append(np.asarray(shard[: count - sum(map(len, taken))]))
        return np.concatenate(taken)


def write_shard(path: Path, tokens: Codes, vocabulary: int, tokeniser: str, source: str) -> None:
    """Writes one shard aside and renames it into place.

    Args:
        tokens: (n,) of uint16. tokeniser, source: digests.

    Raises:
        OSError: the disk is full or the folder cannot be written; nothing is left behind.
        UsageError: a token is not below V.
    """
    if len(tokens) and (largest := int(tokens.max())) >= vocabulary:
        raise UsageError(
            f"there is a token {largest:,} where each must be below {vocabulary:,}, the size of the vocabulary;"
            " take another --tokeniser"
        )
    content = np.ascontiguousarray(tokens, _ON_DISK).tobytes()
    header = Header(vocabulary, len(tokens), tokeniser, source, hashlib.sha256(content).hexdigest())
    aside = path.with_name(f".{path.name}.{uuid4().hex}")
    try:
        with open(aside, "wb") as file:
            file.write(header.pack())
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        os.replace(aside, path)
    finally:
        with contextlib.suppress(OSError):
            aside.unlink(missing_ok=True)


def read_header(path: Path) -> Header:
    """What a shard says of itself.

    Raises:
        UsageError: it is missing, no shard, cut off in its header, or of another version.
    """
    try:
        with open(path, "rb") as file:
            head = file.read(HEADER_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read the shard {path}: {error.strerror or error}; {AGAIN}") from error
    if head[: len(MAGIC)] != MAGIC:
        raise UsageError(f"{path} is no shard of tokens: it does not begin with {MAGIC.decode()}; {AGAIN}")
    if len(head) < HEADER_BYTES:
        raise UsageError(f"the shard {path} is truncated in its header; {AGAIN}")
    _, version, width, vocabulary, _, tokens, *digests = _HEADER.unpack_from(head)
    if (version, width) != (VERSION, _ON_DISK.itemsize):
        raise UsageError(
            f"the shard {path} has version {version} and {width}-byte tokens; this package reads version {VERSION}"
            f" with {_ON_DISK.itemsize}; {AGAIN}"
        )
    return Header(vocabulary, tokens, *(digest.hex() for digest in digests))


def read_shard(path: Path, tokeniser: str) -> Codes:
    """The tokens of a shard, as a memory map (n,) of uint16, checksum verified.

    Args:
        tokeniser: the digest of the tokeniser that must have made it.

    Raises:
        UsageError: the shard is truncated, corrupt or another tokeniser's; the sentence names it.
    """
    header, found = read_header(path), path.stat()
    held = found.st_size - HEADER_BYTES
    if held != header.tokens * _ON_DISK.itemsize:
        state = "truncated" if held < header.tokens * _ON_DISK.itemsize else "too long"
        raise UsageError(
            f"the shard {path} is {state}: its header promises {header.tokens:,} tokens, the file holds"
            f" {held / _ON_DISK.itemsize:,.0f}; {AGAIN}"
        )
    if header.tokeniser != tokeniser:
        raise UsageError(f"the shard {path} was made by another tokeniser than the one asked for; {AGAIN}")
    if not header.tokens:
        return np.empty(0, _ON_DISK)
    tokens = np.memmap(path, _ON_DISK, "r", HEADER_BYTES, (header.tokens,))
    known = (path.absolute(), found.st_size, found.st_mtime_ns, header.checksum)
    if known not in _verified:
        if hashlib.sha256(tokens.data).hexdigest() != header.checksum:
            raise UsageError(
                f"the shard {path} is corrupt: its tokens do not have the checksum of its header; {AGAIN}"
            )
        _verified.add(known)
    return tokens
