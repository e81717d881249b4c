"""Which windows of a corpus a step trains on, and which are scored."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from torch import Tensor

from cemverify.console.errors import UsageError
from synthetic.corpora.tokens import Tokens


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


def spread_windows(tokens: Tokens, count: int, context: int) -> Tensor:
    """Evenly spaced windows over all tokens, at most `count` and without overlap: (W, J+1) of int64.

    Raises:
        UsageError: there are fewer tokens than one window has.
    """
    available = (len(tokens) - 1) // context
    if available < 1:
        raise UsageError(
            f"a context of {context:,} tokens is longer than the data: the validation part has {len(tokens):,}"
            " tokens, and a window takes one more than the context"
        )
    chosen = min(count, available)
    return tokens.windows([i * available // chosen * context for i in range(chosen)], context + 1)


def _mix(seed: int, step: int) -> int:
    """32 bits mixed from both, as many as the CPU generator takes; with seed + step, batches would repeat."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{step}".encode()).digest()[:4])
