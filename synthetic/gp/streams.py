"""Random streams: one generator for each thing that is drawn, so that runs can be paired.

Two runs that differ in recursion depth alone share the function, the split, the initial weights and the
batches, because none of these streams knows of the depth.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
import torch


class Stream(IntEnum):
    """What is drawn; the numbers are part of the seed, so they never change."""

    INPUTS = 0
    FUNCTION = 1
    NOISE = 2
    WEIGHTS = 3
    BATCHES = 4
    FEATURES = 5
    SELF_TEST = 6


@dataclass(frozen=True)
class Streams:
    """The streams of one replicate of one task.

    Attributes:
        root: the seed the user gave, at least 0. task: the name of the task. seed: the number of the replicate.
    """

    root: int
    task: str
    seed: int

    def generator(self, stream: Stream, part: str = "") -> torch.Generator:
        """A fresh CPU generator, at the start of the stream, or of one part of it that has a name of its own."""
        # a hash of the name and not its place in a list: new tasks leave the old ones as they were
        parts = (zlib.crc32(part.encode()),) if part else ()
        key = (zlib.crc32(self.task.encode()), self.seed, int(stream), *parts)
        sequence = np.random.SeedSequence(self.root, spawn_key=key)
        return torch.Generator().manual_seed(int(sequence.generate_state(1, np.uint64)[0]))
