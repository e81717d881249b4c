"""Tokens on disk: NumPy's own .npy files of two-byte numbers, read through a memory map.

A long part is spread over several files, so that it can be written before its length is known. What each must hold is
written in corpus.json: how many tokens, and the SHA-256 of them. The checksum covers the tokens and not the header
of the .npy file, so that a corpus has the same checksums whichever version of NumPy wrote it.

Checksums are verified once in each process, and again if a file has another size or time than it had.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from cemverify.console.errors import UsageError
from synthetic.corpora.tokenisers import Codes

TOKENS_PER_FILE = 2**27  # 256 MiB
AGAIN = "delete its folder, and it will be created again"  # what to do about a damaged corpus
_ON_DISK = np.dtype("<u2")
_verified: set[tuple[Path, int, int, str]] = set()  # path, size, time in ns and checksum of files found sound


@dataclass(frozen=True)
class TokenFile:
    """What corpus.json says of one file.

    Attributes:
        name: in the folder of the corpus. tokens: how many it holds. sha256: of the tokens, as hexadecimal digits.
    """

    name: str
    tokens: int
    sha256: str


@dataclass(frozen=True)
class Tokens:
    """A sequence of tokens that may lie in several files.

    Attributes:
        arrays: (n,) of uint16 each, one after another; memory maps, if they were read.
    """

    arrays: tuple[Codes, ...]

    def __len__(self) -> int:
        return sum(map(len, self.arrays))

    def windows(self, starts: Sequence[int], length: int) -> Tensor:
        """The windows of `length` tokens that begin at `starts`: (W, length) of int64."""
        out = np.empty((len(starts), length), np.int64)
        ends = np.cumsum([len(array) for array in self.arrays])
        for row, start in zip(out, starts, strict=True):
            filled = 0
            while filled < length:  # a window may lie across files
                i = int(np.searchsorted(ends, start + filled, side="right"))
                offset = start + filled - (ends[i] - len(self.arrays[i]))
                piece = self.arrays[i][offset : offset + length - filled]
                row[filled : filled + len(piece)] = piece
                filled += len(piece)
        return torch.from_numpy(out)

    def head(self, count: int) -> Codes:
        """The first `count` tokens, or all there are, as one array."""
        taken: list[Codes] = []
        for array in self.arrays:
            taken.append(np.asarray(array[: count - sum(map(len, taken))]))
        return np.concatenate(taken)


def write_tokens(path: Path, tokens: Codes, vocabulary: int) -> TokenFile:
    """Writes one file and waits until it is on the disk; returns what corpus.json is to say of it.

    The folder is the caller's to rename when all of it is written.

    Args:
        tokens: (n,) of uint16. vocabulary: V; every token must be below it.

    Raises:
        OSError: the disk is full, or the folder cannot be written.
        UsageError: a token is not below V.
    """
    if len(tokens) and (largest := int(tokens.max())) >= vocabulary:
        raise UsageError(
            f"there is a token {largest:,} where each must be below {vocabulary:,}, the size of the vocabulary;"
            " take another --tokeniser"
        )
    content = np.ascontiguousarray(tokens, _ON_DISK)
    with open(path, "wb") as file:
        # in two parts, as NumPy's own way of writing the tokens does not say why a disk takes no more
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(content))
        file.write(content.data)
        file.flush()
        os.fsync(file.fileno())
    return TokenFile(path.name, len(content), _checksum(content))


def read_tokens(folder: Path, said: TokenFile) -> Codes:
    """The tokens of a file, as a memory map (n,) of uint16, checksum verified.

    Args:
        folder: of the corpus. said: what its corpus.json says of the file.

    Raises:
        UsageError: the file is missing, truncated, corrupt, or no file of tokens; the sentence names it.
    """
    path = folder / said.name
    try:
        found = path.stat()
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise UsageError(f"cannot read the tokens {path}: {error.strerror or error}; {AGAIN}") from error
    except Exception as error:  # of a header: many kinds
        raise UsageError(f"{path} is truncated, or is not a .npy file of tokens; {AGAIN}") from error
    if not isinstance(tokens, np.memmap) or tokens.dtype != _ON_DISK or tokens.shape != (said.tokens,):
        shape = getattr(tokens, "shape", ())
        raise UsageError(
            f"{path} does not hold the {said.tokens:,} two-byte tokens that corpus.json promises, but an array"
            f" {tuple(shape)} of {getattr(tokens, 'dtype', 'other things')}; {AGAIN}"
        )
    known = (path.absolute(), found.st_size, found.st_mtime_ns, said.sha256)
    if known not in _verified:
        if _checksum(tokens) != said.sha256:
            raise UsageError(f"{path} is corrupt: its tokens do not have the checksum in corpus.json; {AGAIN}")
        _verified.add(known)
    return tokens


def _checksum(tokens: Codes) -> str:
    return hashlib.sha256(tokens.data).hexdigest()


# --- which windows a step trains on, and which are scored -------------------------------------------


@dataclass(frozen=True)
class Batches:
    """Random windows, a pure function of (seed, step, rank, world).

    The windows of a step do not depend on the number of processes that share them, so a run can be resumed with
    another number of processes and sees the same data.

    Attributes:
        tokens: to draw from. seed: of the study. size: B, over all processes. context: J.

    Raises:
        UsageError: a window does not fit into the tokens.
    """

    tokens: Tokens
    seed: int
    size: int
    context: int

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.context:
            raise UsageError(
                f"a context of {self.context:,} tokens is longer than the data: the training part has"
                f" {len(self.tokens):,} tokens, and a window takes one more than the context"
            )

    def __call__(self, step: int, rank: int = 0, world: int = 1) -> Tensor:
        """A rank's share of the windows of that step, (B/world, J+1) of int64: inputs and what follows them.

        Raises:
            UsageError: B windows cannot be shared equally by that many processes.
        """
        if self.size % world:
            raise UsageError(f"a batch of {self.size} windows cannot be shared equally by {world} processes")
        generator = torch.Generator().manual_seed(_mix(self.seed, step))
        starts = torch.randint(len(self.tokens) - self.context, (self.size,), generator=generator)
        share = self.size // world
        return self.tokens.windows(starts[rank * share : (rank + 1) * share].tolist(), self.context + 1)


def spread_windows(tokens: Tokens, count: int, context: int, stretch: range | None = None) -> Tensor:
    """Evenly spaced windows over all tokens, at most `count` and without overlap: (W, J+1) of int64.

    Args:
        stretch: the places of the tokens that are meant, one after another, where it is not all of them.

    Raises:
        UsageError: there are fewer tokens than one window has.
    """
    places = range(len(tokens)) if stretch is None else stretch
    available = (len(places) - 1) // context
    if available < 1:
        raise UsageError(
            f"a context of {context:,} tokens is longer than the data: the validation part has {len(tokens):,} tokens"
            f", {len(places):,} of which are scored, and a window takes one more than the context"
        )
    chosen = min(count, available)
    starts = [places.start + i * available // chosen * context for i in range(chosen)]
    return tokens.windows(starts, context + 1)


def _mix(seed: int, step: int) -> int:
    """32 bits mixed from both, as many as the CPU generator takes; with seed + step, batches would repeat."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}".encode()).digest()[:4])
