"""Floating-point operations, counted from the operations that run instead of by a rule of thumb.

The 6N rule is wrong for tied, recursive layers, because a parameter is used once or twice in each of T steps. On the
meta device the same operations are dispatched without computing anything.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from cemverify.cem.torch_internals import TorchDispatchMode


@dataclass(frozen=True)
class Flops:
    """The cost of some code."""

    # of matrix products, convolutions and attention; a multiplication and an addition count as two, and causal
    # attention counts as dense
    matmul: int
    # one for each element that an element-wise operation writes or a reduction reads, whatever the operation: an
    # exponential costs more than an addition, but how much more depends on the machine
    elementwise: int


def matmul_flops(function: Callable[..., Any], *arguments: Any) -> int:
    """The matrix-product FLOPs of one call.

    Args:
        function: a module or a function of tensors; count a training step by passing one that calls backward.
    """
    with FlopCounterMode(display=False) as counter:
        function(*arguments)
    return int(counter.get_total_flops())


def count(function: Callable[..., Any], *arguments: Any) -> Flops:
    """All FLOPs of one call; arguments as for `matmul_flops`."""
    with _ElementwiseCounter() as counter:
        matmul = matmul_flops(function, *arguments)
    return Flops(matmul, counter.total)


# not tagged as element-wise, but read or write every element once
_REDUCTIONS = frozenset({"sum", "mean", "amax", "linalg_vector_norm", "_softmax", "_log_softmax"})


class _ElementwiseCounter(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch has no types here
    """Counts the elements of the operations that run."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        if torch.Tag.pointwise in func.tags and isinstance(out, Tensor) and out.is_floating_point():
            self.total += out.numel()
        elif func.overloadpacket.__name__ in _REDUCTIONS:
            self.total += args[0].numel()
        return out
