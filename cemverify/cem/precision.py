"""The dtype of matrix products under autocast, in which what several products share is made once."""

from __future__ import annotations

import torch
from torch import Tensor


def for_products(tensor: Tensor) -> Tensor:
    """The tensor as products take it: autocast keeps a cast of a weight, but none of its transpose or of a state."""
    kind = tensor.device.type
    if tensor.dtype != torch.float32 or not torch.amp.is_autocast_available(kind):
        return tensor
    return tensor.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else tensor
