"""The byte corpus of the language study: the running Python's standard library, and what is known about it.

Nothing is downloaded: every Python brings its own source. A corpus is the same for the same Python version,
and `Corpus.digest` tells. The yardsticks say how many bits per byte models without any depth need on the very
bytes that the study's models predict.
"""

from __future__ import annotations

import gzip
import hashlib
import lzma
import math
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from synthetic.errors import UsageError

VOCABULARY = 256  # a token is a byte

# encodings: some hundred tables generated from one another; split by file, they would leak into validation.
SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__", "encodings"}
)
SKIPPED_PREFIX = "_sysconfigdata"  # settings of the build, which differ between machines of one version


@dataclass(frozen=True)
class Corpus:
    """Text split by file.

    Attributes:
        train, validation: the bytes of each part, (N,) of uint8.
        train_files, validation_files: paths relative to the root, sorted.
    """

    train: Tensor
    validation: Tensor
    train_files: tuple[str, ...]
    validation_files: tuple[str, ...]

    @property
    def digest(self) -> str:
        """A fingerprint of both parts: equal digests, equal text."""
        hashed = hashlib.sha256(bytes(self.train.numpy()))
        hashed.update(bytes(self.validation.numpy()))
        return hashed.hexdigest()


@dataclass(frozen=True)
class Batches:
    """Random windows of a text, a pure function of (seed, step).

    Attributes:
        text: (N,) of uint8. seed: of the study. size: B. context: J.
    """

    text: Tensor
    seed: int
    size: int
    context: int

    def __call__(self, step: int) -> Tensor:
        """The windows of that step, (B, J+1) of int64: inputs and, one further, what follows them."""
        generator = torch.Generator().manual_seed(_mix(self.seed, step))
        starts = torch.randint(len(self.text) - self.context, (self.size, 1), generator=generator)
        return self.text[starts + torch.arange(self.context + 1)].long()


@dataclass(frozen=True)
class Yardsticks:
    """Bits per byte of simpler models on the same validation bytes.

    Attributes:
        uniform: of 256 equally likely bytes.
        unigram, bigram: cross-entropies of counts on the training part; smoothed as `bigram` below says.
        gzip, xz: compressed size over size of the whole validation part, which they see without training.
    """

    uniform: float
    unigram: float
    bigram: float
    gzip: float
    xz: float


def standard_library() -> Corpus:
    """The source text of the running Python's standard library, without its tests.

    Raises:
        UsageError: this Python was installed without its source.
    """
    return read(Path(sysconfig.get_path("stdlib")))


def read(root: Path) -> Corpus:
    """All *.py below a folder, in the order of their paths, split by file.

    A file whose bytes repeat those of one before it is left out, so that no text is in both parts.

    Raises:
        UsageError: one of the two parts would be empty, or a file cannot be read.
    """
    parts: dict[str, tuple[list[str], bytearray]] = {"train": ([], bytearray()), "validation": ([], bytearray())}
    seen = set()
    for path, relative in sorted(_sources(root), key=lambda pair: pair[1]):
        try:
            content = path.read_bytes()
        except OSError as error:
            raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
        fingerprint = hashlib.sha256(content).digest()
        if content and fingerprint not in seen:
            seen.add(fingerprint)
            names, text = parts[part_of(relative)]
            names.append(relative)
            text += content
    for part, (_, text) in parts.items():
        if not text:
            raise UsageError(f"no Python source for the {part} part of the corpus below {root}")
    train, validation = parts["train"], parts["validation"]
    return Corpus(
        torch.frombuffer(train[1], dtype=torch.uint8),
        torch.frombuffer(validation[1], dtype=torch.uint8),
        tuple(train[0]),
        tuple(validation[0]),
    )


def part_of(relative: str) -> str:
    """ "validation" for about a tenth of all paths, "train" for the rest; depends on the path alone."""
    return "validation" if hashlib.sha256(relative.encode()).digest()[0] < 26 else "train"


def windows(text: Tensor, count: int, context: int) -> Tensor:
    """Evenly spaced windows over a whole text, at most `count` and without overlap: (W, J+1) of int64.

    Raises:
        ValueError: the text is shorter than one window.
    """
    available = (len(text) - 1) // context
    if available < 1:
        raise ValueError(f"a text of {len(text)} bytes has no window of {context + 1}")
    chosen = min(count, available)
    starts = torch.arange(chosen) * available // chosen * context
    return text[starts[:, None] + torch.arange(context + 1)].long()


def unigram(train: Tensor) -> Tensor:
    """The frequencies of bytes (N,) in train, with one byte's worth of uniform counts added: (256,)."""
    counts = torch.bincount(train.int(), minlength=VOCABULARY).double()
    return (counts + 1 / VOCABULARY) / (counts.sum() + 1)


def bigram(train: Tensor) -> Tensor:
    """p(next | previous) of bytes (N,), each row with one byte's worth of unigram counts added: (256, 256)."""
    pairs = train[:-1].int() * VOCABULARY + train[1:].int()
    counts = torch.bincount(pairs, minlength=VOCABULARY**2).double().view(VOCABULARY, VOCABULARY)
    return (counts + unigram(train)) / (counts.sum(1, keepdim=True) + 1)


def yardsticks(corpus: Corpus, validation: Tensor) -> Yardsticks:
    """What simpler models reach on validation windows (W, J+1), predicting all but each window's first byte."""
    previous, following = validation[:, :-1], validation[:, 1:]
    whole = bytes(corpus.validation.numpy())
    return Yardsticks(
        uniform=math.log2(VOCABULARY),
        unigram=_bits(unigram(corpus.train)[following]),
        bigram=_bits(bigram(corpus.train)[previous, following]),
        gzip=8 * len(gzip.compress(whole, 9, mtime=0)) / len(whole),
        xz=8 * len(lzma.compress(whole)) / len(whole),
    )


def _bits(probabilities: Tensor) -> float:
    return float(-probabilities.log2().mean())


def _sources(root: Path) -> list[tuple[Path, str]]:
    found = ((path, path.relative_to(root)) for path in root.rglob("*.py") if path.is_file())
    return [
        (path, relative.as_posix())
        for path, relative in found
        if not SKIPPED_FOLDERS & set(relative.parts[:-1]) and not relative.name.startswith(SKIPPED_PREFIX)
    ]


def _mix(seed: int, step: int) -> int:
    """32 bits from both, as many as the CPU generator takes: seed + step would repeat batches across seeds."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}".encode()).digest()[:4])
