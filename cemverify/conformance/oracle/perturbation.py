"""What roundoff may explain where there is no running bound: measured with much larger perturbations.

Every operand is perturbed at random by a relative 2^-36, many times the roundoff of float64. To first order, effects
are proportional to perturbations. So the largest effect of a few trials, scaled down, is that of one rounding per
operation. A sum of n products rounds n times, so the bound is multiplied by the length of the longest sum in the
case. A factor of eight allows for other orders of evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.torch_internals import TorchDispatchMode

_SIZE = 2.0**-36
TRIALS = 2
_OTHER_ORDERS = 8


def distances(
    evaluate: Callable[[], Mapping[str, Tensor]], exact: Mapping[str, Tensor], trial: int
) -> dict[str, Tensor]:
    """How far each array of a float64 evaluation moves in one trial: one number () per array."""
    with Perturbed(torch.Generator().manual_seed(trial)):
        moved = evaluate()
    return distances_between(moved, exact)


def distances_between(moved: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The largest difference of each array, one number () per array; infinite where it is NaN."""
    return {
        name: (moved[name] - values).abs().max().nan_to_num(nan=torch.inf) if values.numel() else torch.zeros(())
        for name, values in exact.items()
    }


def allowance(
    exact: Mapping[str, Tensor], trials: Sequence[Mapping[str, Tensor]], terms: Mapping[str, int], unit: float
) -> dict[str, Tensor]:
    """Estimated bounds, on the safe side, on the error of each array that an evaluation returns.

    Args:
        exact: what it returns unperturbed. trials: how far its arrays moved in each. More trials can only raise the
            bounds, which are smallest without any. terms: the length of the longest sum that leads to each array.
        unit: the unit roundoff of the arithmetic judged.

    Returns:
        One number () per array, infinite if the evaluation is too ill-conditioned.
    """
    scale = {name: values.abs().max() if values.numel() else torch.zeros(()) for name, values in exact.items()}
    worst = {name: torch.stack([torch.zeros_like(scale[name]), *(t[name] for t in trials)]).amax() for name in exact}
    factor = {name: _OTHER_ORDERS * terms[name] * unit / _SIZE for name in exact}
    # a movement above 1 % of the values is not first order
    return {
        name: torch.where(worst[name] > 0.01 * scale[name], torch.inf, factor[name] * worst[name])
        + _OTHER_ORDERS * unit * scale[name]
        for name in exact
    }


def shaken(array: Tensor, generator: torch.Generator, size: float = _SIZE) -> Tensor:
    """The array with every number perturbed by at most that fraction of it."""
    noise = torch.empty(array.shape, dtype=array.dtype)
    return array * noise.uniform_(1 - size, 1 + size, generator=generator)


class Perturbed(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Perturbs the operands of operations, except views of other arrays and in-place changes.

    GELU is split up: 1 + erf(z) cancels for very negative z, which a kernel that does it in one operation hides.

    Args:
        size: the largest relative perturbation; many times the roundoff of the arithmetic. narrow: also perturbs
            float32 operands.
    """

    def __init__(self, generator: torch.Generator, size: float = _SIZE, *, narrow: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator, self.size = generator, size
        self.dtypes = {torch.float64, torch.float32} if narrow else {torch.float64}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Never compiled: without this, torch wraps every operation in a function that ensures it."""
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _returns_views(func):
            return func(*args, **(kwargs or {}))
        if (parts := _PARTS.get(func)) is not None:
            with self:
                return parts(*args, **(kwargs or {}))
        return func(*(self._moved(a) for a in args), **(kwargs or {}))

    def _moved(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dtype not in self.dtypes:
            return value
        return shaken(value, self.generator, self.size)


def _gelu(z: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        inner = _TANH * (z + _CUBE * (z * z * z))
        return 0.5 * z * (1 + torch.tanh(inner))
    return z * 0.5 * (1 + torch.erf(z * math.sqrt(0.5)))


def _gelu_backward(incoming: Tensor, z: Tensor, approximate: str = "none") -> Tensor:
    if approximate == "tanh":
        square = z * z
        tanh = torch.tanh(_TANH * (z + _CUBE * (square * z)))
        half, below, bend = 0.5 * z, 0.5 * (1 + tanh), 1 - tanh * tanh
        inner_slope = _TANH * (1 + 3 * _CUBE * square)
        return incoming * (below + half * bend * inner_slope)
    below = 0.5 * (1 + torch.erf(z * math.sqrt(0.5)))
    return incoming * (below + z * (math.sqrt(0.5 / math.pi) * torch.exp(z * z * -0.5)))


_TANH, _CUBE = math.sqrt(2 / math.pi), 0.044715
# torch's own decompositions import its compiler, which takes seconds in each process
_PARTS: Mapping[Any, Callable[..., Tensor]] = {
    torch.ops.aten.gelu.default: _gelu,
    torch.ops.aten.gelu_backward.default: _gelu_backward,
}


@cache
def _returns_views(func: Any) -> bool:
    """Whether an operation returns a view of an operand, or the operand itself."""
    return any(returned.alias_info is not None for returned in func._schema.returns)
