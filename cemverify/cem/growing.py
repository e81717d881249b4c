"""A tensor that grows by a few tokens at a time, as a cache does, without being copied each time."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from cemverify.cem.torch_internals import is_transforming


@dataclass(eq=False)
class Spare:
    """Storage with room for more, shared by all tensors that have grown from it.

    Attributes:
        storage: its first `filled` entries along the axis are in use.
    """

    storage: Tensor
    filled: int


def append(past: Tensor, new: Tensor, axis: int, spare: Spare | None) -> tuple[Tensor, Spare | None]:
    """past and new, one after the other along the axis, and the room that is left behind them.

    If there is spare room, and nothing has grown from the same past before, as in decoding, the new entries are
    written behind the old ones. Otherwise both are copied, into twice the room that they need. So a past stays as it
    was, and may be continued in several ways. If a derivative may be wanted, `torch.cat` joins the two.

    Args:
        spare: the room behind the past, as an earlier call returned it; None if there is none.
    """
    follows = torch.is_grad_enabled() and (past.requires_grad or new.requires_grad)
    if follows or torch.compiler.is_compiling() or is_transforming():
        return torch.cat((past, new), axis), None
    length, total = past.shape[axis], past.shape[axis] + new.shape[axis]
    room = 0 if spare is None or spare.filled != length else spare.storage.shape[axis]
    if spare is None or room < total or spare.storage.dtype != new.dtype:
        shape = list(past.shape)
        shape[axis] = 2 * total
        spare = Spare(past.new_empty(shape, dtype=torch.promote_types(past.dtype, new.dtype)), length)
        spare.storage.narrow(axis, 0, length).copy_(past)
    # `data`: this does not change what autograd has kept of the past to differentiate in a weight alone
    spare.storage.data.narrow(axis, length, new.shape[axis]).copy_(new)
    spare.filled = total
    return spare.storage.narrow(axis, 0, total), spare
