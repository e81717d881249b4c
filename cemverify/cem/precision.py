"""The dtype of matrix products under autocast, so that an operand of several products is cast once."""

from __future__ import annotations

import torch
from torch import Tensor


def for_products(tensor: Tensor) -> Tensor:
    """The tensor as products take it: autocast keeps a weight's cast, but not that of its transpose or of a state."""
    kind = tensor.device.type
    if tensor.dtype != torch.float32 or not torch.amp.is_autocast_available(kind):
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor


def add_product(total: Tensor, a: Tensor, b: Tensor, scale: float = 1.0) -> None:
    """total += scale a @ b for stacks of matrices, in the precision of the total."""
    if total.dtype == a.dtype:
        total.baddbmm_(a, b, alpha=scale)
    else:
        total.add_(torch.bmm(a, b), alpha=scale)
