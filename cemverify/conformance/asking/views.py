"""The same numbers in other memory layouts: windows of larger arrays, transposed, repeated, in one storage."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.dlpack import from_dlpack


def window(array: Any) -> Any:
    """The array in every second place of a larger one, with NaN between, which must not be read."""
    larger = array.repeat_interleave(2, 0) if isinstance(array, Tensor) else array.repeat(2, 0)
    larger[::2] = math.nan
    return larger[1::2]


def inner_window(array: Any) -> Any:
    """The array in every second place of a larger one along the last axis, with nines between."""
    last = array.ndim - 1
    larger = array.repeat_interleave(2, last) if isinstance(array, Tensor) else array.repeat(2, last)
    larger[..., 1::2] = 9.0
    return larger[..., ::2]


def transposed(array: Any) -> Any:
    """The array with its axes in reverse order in memory, as in Fortran."""
    if isinstance(array, Tensor):
        axes = list(range(array.ndim))[::-1]
        return array.permute(axes).contiguous().permute(axes)
    return array.T.copy().T


def repeated(array: Any, axis: int) -> Any:
    """The first entry along an axis, repeated for every place by a stride of zero."""
    first = array[tuple(slice(1) if i == axis else slice(None) for i in range(array.ndim))]
    return first.expand(array.shape) if isinstance(array, Tensor) else np.broadcast_to(first, array.shape)


def expanded(array: Any) -> Any:
    """The first number, repeated for every place: all strides are zero."""
    if isinstance(array, Tensor):
        return array.flatten()[:1].reshape((1,) * array.ndim).expand(array.shape)
    return np.broadcast_to(array.ravel()[:1], array.shape)


def reverse_strided(array: Any) -> Any:
    """A NumPy array with a negative stride along the tokens."""
    return array[:, ::-1].copy()[:, ::-1]


# How the gradient that enters a layer may lie: y.mean(1) repeats a row, y.sum() a single number.
_INCOMING: Sequence[tuple[str, Callable[[Any], Any]]] = (
    ("contiguous", lambda array: array),
    ("in Fortran order", transposed),
    ("a window with gaps", inner_window),
    ("a window that begins later", window),
    ("one token repeated", lambda array: repeated(array, 1) if array.ndim > 1 else array),
    ("one number repeated", expanded),
)


def incoming(turn: int) -> tuple[str, Callable[[Any], Any]]:
    """This turn's layout of an incoming gradient: in words, and a function that lays an array out so.

    Laying an array out a second time changes no numbers.
    """
    return _INCOMING[turn * 2654435761 // 2**16 % len(_INCOMING)]  # mixed: other draws use the same turn


def in_one_storage(arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The arrays as windows of larger ones: those of equal shape side by side in each row, all others in turn."""
    windows: dict[str, Any] = {}
    for shape in dict.fromkeys(tuple(array.shape) for array in arrays.values()):
        names = [name for name, array in arrays.items() if tuple(array.shape) == shape]
        if len(names) > 1:
            row, n = _joined([arrays[name] for name in names], -1), shape[-1]
            windows |= {name: row[..., i * n : (i + 1) * n] for i, name in enumerate(names)}
    apart, start = [name for name in arrays if name not in windows], 0
    flat: Any = _joined([arrays[name].reshape(-1) for name in apart], 0) if apart else None
    for name in apart:
        shape = tuple(arrays[name].shape)
        windows[name] = flat[start : start + math.prod(shape)].reshape(shape)
        start += math.prod(shape)
    return {name: windows[name] for name in arrays}


def _joined(arrays: Sequence[Any], axis: int) -> Any:
    return torch.cat(tuple(arrays), axis) if isinstance(arrays[0], Tensor) else np.concatenate(arrays, axis)


def interleaved(one: Any, other: Any) -> tuple[Any, Any]:
    """Two arrays of one shape as windows of one array, where their numbers alternate."""
    joined = torch.stack((one, other), -1) if isinstance(one, Tensor) else np.stack((one, other), -1)
    return joined[..., 0], joined[..., 1]


def writable(array: Any) -> Any:
    """The array as optimisers may write to it: bypassing torch's version counter."""
    return array.data if isinstance(array, Tensor) else array


def renewed(array: Any) -> Any:
    """A new array in the same memory, as if the old one had been freed; its version counter starts at zero."""
    return from_dlpack(array) if isinstance(array, Tensor) else array.view()


def exchange(array: Any, turn: Callable[[int], int]) -> None:
    """Exchanges two neighbouring numbers in place, not at the ends if there is room.

    Args:
        turn: maps n to a place from 0 to n - 1, which differs from case to case.
    """
    size = math.prod(array.shape)
    if size > 1:
        first = 1 + turn(size - 3) if size > 3 else 0
        one, other = (tuple(int(i) for i in np.unravel_index(n, array.shape)) for n in (first, first + 1))
        array[one], array[other] = float(array[other]), float(array[one])


def overwrite(answer: Any) -> None:
    """Overwrites an earlier answer with other numbers, if it is writable."""
    try:
        if isinstance(answer, Tensor):
            answer = answer.detach()
        answer[...] = 7.0
    except (TypeError, ValueError, RuntimeError):
        pass  # not writable: JAX arrays, expanded tensors
