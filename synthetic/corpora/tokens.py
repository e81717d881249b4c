"""Tokens on disk: two-byte numbers and nothing else, one file for each part, read through a memory map.

corpus.json has their number and their SHA-256. The checksum is verified once in each process, and again if the file's
size or time changes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.lib.stride_tricks import sliding_window_view
from torch import Tensor

from cemverify.console.errors import UsageError
from synthetic.corpora.tokenisers import Codes

AGAIN = "delete its folder, and it will be created again"  # what to do about a damaged corpus
ON_DISK = np.dtype("<u2")
_verified: set[tuple[Path, int, int, str]] = set()  # path, size, time in ns and checksum of files found sound


@dataclass(frozen=True)
class Tokens:
    """A sequence of tokens."""

    codes: Codes  # (n,) of uint16; a memory map if read from a file

    def __len__(self) -> int:
        return len(self.codes)

    def windows(self, starts: Sequence[int], length: int) -> Tensor:
        """The windows of `length` tokens that begin at `starts`: (W, length) of int64."""
        windows = sliding_window_view(self.codes, length)[np.asarray(starts, np.int64)]
        return torch.from_numpy(windows.astype(np.int64))

    def head(self, count: int) -> Codes:
        """The first `count` tokens, or all there are."""
        return np.asarray(self.codes[:count])


def read_tokens(path: Path, count: int, sha256: str) -> Tokens:
    """The tokens of a file, checksum verified.

    Args:
        count, sha256: as in corpus.json.
    """
    try:
        status = path.stat()
        if status.st_size != 2 * count:
            raise UsageError(
                f"{path} does not hold the {count:,} two-byte tokens that corpus.json promises, but"
                f" {status.st_size:,} bytes; {AGAIN}"
            )
        codes = np.memmap(path, ON_DISK, "r", shape=(count,))
    except OSError as error:
        raise UsageError(f"cannot read the tokens {path}: {error.strerror or error}; {AGAIN}") from error
    identity = (path.absolute(), status.st_size, status.st_mtime_ns, sha256)
    if identity not in _verified:
        if hashlib.sha256(codes.data).hexdigest() != sha256:
            raise UsageError(f"{path} is corrupt: its tokens do not have the checksum in corpus.json; {AGAIN}")
        _verified.add(identity)
    return Tokens(codes)


# --- which windows a step trains on, and which are scored -------------------------------------------


@dataclass(frozen=True)
class Batches:
    """Random windows, a pure function of (seed, step): a resumed run sees the same data."""

    tokens: Tokens  # to draw from
    seed: int  # of the study
    size: int  # B
    context: int  # J

    def __post_init__(self) -> None:
        if len(self.tokens) <= self.context:
            raise UsageError(
                f"a context of {self.context:,} tokens is longer than the data: the training part has"
                f" {len(self.tokens):,} tokens, and a window takes one more than the context"
            )

    def __call__(self, step: int) -> Tensor:
        """The windows of a step, (B, J+1) of int64: the inputs and their next tokens."""
        # 32 bits mixed from both, the most that the CPU generator uses; with seed + step, batches would repeat
        mixed = hashlib.sha256(f"{self.seed}/{step}".encode()).digest()[:4]
        generator = torch.Generator().manual_seed(int.from_bytes(mixed))
        starts = torch.randint(len(self.tokens) - self.context, (self.size,), generator=generator)
        return self.tokens.windows(starts.tolist(), self.context + 1)


def spread_windows(tokens: Tokens, count: int, context: int, stretch: range | None = None) -> Tensor:
    """Evenly spaced windows over all tokens, at most `count` and without overlap: (W, J+1) of int64.

    Args:
        stretch: a range of token positions to take them from; by default all tokens.
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
