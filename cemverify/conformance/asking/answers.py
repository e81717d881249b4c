"""What an implementation returned, as plain arrays, before anything looks at it.

A subclass of an array can answer any question about itself as it likes: its shape, its values, its conversions.
So no method of the object is called. torch's and NumPy's own functions read its numbers once, and everything
afterwards uses what they read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.torch_internals import without_overrides
from cemverify.conformance.implementations.arrays import is_jax_array
from cemverify.conformance.implementations.faults import Fault, NotAnArray, WrongShape, ran_out, words


def plain(returned: Any) -> Any:
    """The array without its subclass; a lazy object as the array that it gives now; anything else unchanged.

    Gradients still flow through a tensor. JAX arrays are kept, and so are the tracers that stand for them.
    """
    kind = type(returned)  # `isinstance` believes an object that lies about its class
    if kind is Tensor or kind is np.ndarray:
        return returned
    try:
        if issubclass(kind, Tensor):
            with without_overrides():
                return Tensor.as_subclass(returned, Tensor)
        if issubclass(kind, np.ndarray):
            return np.ndarray.view(returned, np.ndarray)
        if hasattr(kind, "__array__") and not is_jax_array(returned):
            return np.asarray(returned)
    except Exception as error:
        if isinstance(error, Fault) or ran_out(error):
            raise
        raise NotAnArray(f"its result cannot be read as an array: {words(error)}") from error
    return returned


def as_tensor(returned: Any, shape: torch.Size | None = None) -> Tensor:
    """Any array of real numbers that was returned, as a float64 tensor on the CPU, in memory of its own.

    Args:
        shape: the expected shape, if there is one; checked before something huge is copied.
    """
    try:
        array = plain(returned)
        if type(array) is Tensor:
            if array.is_complex() or array.layout != torch.strided or array.is_quantized or array.is_meta:
                raise NotAnArray(f"it returned a tensor of {array.dtype}, {array.layout}, on {array.device}")
            check_shape(array.shape, shape)
            return array.detach().to("cpu", torch.float64, copy=True)
        if type(array) is not np.ndarray and not is_jax_array(array):
            raise NotAnArray(f"it returned a {type(returned).__name__}, not an array")
        values = np.asarray(array)
        if values.dtype.kind not in "fiub" and str(values.dtype) != "bfloat16":  # JAX's, whose kind is void to NumPy
            raise NotAnArray(f"it returned an array of {values.dtype}")
        check_shape(values.shape, shape)
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except Exception as error:
        if isinstance(error, Fault) or ran_out(error):
            raise
        raise NotAnArray(f"its result cannot be read as an array: {words(error)}") from error


def numbers_of(arrays: Mapping[str, Any]) -> dict[str, Tensor]:
    """The numbers of each array, copied so that no later call changes them."""
    return {name: as_tensor(array) for name, array in arrays.items()}


def changed_of(arrays: Mapping[str, Any], before: Mapping[str, Tensor]) -> list[str]:
    """The names of the arrays whose numbers have changed."""
    return [name for name, array in arrays.items() if not torch.equal(as_tensor(array), before[name])]


def unlocked(arrays: Mapping[str, Any]) -> list[str]:
    """The names of the arrays that can be written."""
    return [name for name, array in arrays.items() if array.flags.writeable]


def check_shape(shape: Sequence[int], expected: Sequence[int] | None) -> None:
    """Refuses any shape but the expected one."""
    if expected is not None and tuple(shape) != tuple(expected):
        raise WrongShape(f"it returned shape {tuple(shape)}, expected {tuple(expected)}")
