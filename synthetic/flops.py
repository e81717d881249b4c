"""Floating-point operations, counted on the operations that run and not by a rule of thumb.

The 6N rule is wrong for tied, recursive layers: a parameter is used once or twice in each of T steps. The
counter sees matrix products, convolutions and attention (a multiply and an add count two); nothing
element-wise; causal attention counts as if it were dense.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.utils.flop_counter import FlopCounterMode


def matmul_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """The matrix-product FLOPs of one call; works on the meta device, where nothing is computed.

    Args:
        function: a module or a function of tensors; count a training step by passing one that calls backward.
    """
    with FlopCounterMode(display=False) as counter:
        function(*arguments)
    return int(counter.get_total_flops())
