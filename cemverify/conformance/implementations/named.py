"""Several arrays by name, as the functions of a layer take and return them."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from functools import cache
from typing import Any

from cemverify.conformance.implementations.faults import NotAnArray, WrongShape


def packed(arrays: Mapping[str, Any], kind: str) -> Any:
    """One array as it is, several as a named tuple, which torch and JAX both take apart."""
    if len(arrays) == 1:
        return next(iter(arrays.values()))
    return _tuple_of(kind, tuple(arrays))(*arrays.values())


_tuple_of = cache(namedtuple)  # one class for each set of names: JAX compares them


def unpacked(returned: Any, like: Mapping[str, Any]) -> list[Any]:
    """The arrays of an answer, in the order of the declared names.

    Raises:
        NotAnArray: their names or their number differ.
    """
    if isinstance(returned, Mapping):
        if set(returned) != set(like):
            raise NotAnArray(f"it returned arrays named {sorted(map(str, returned))}, expected {list(like)}")
        return [returned[name] for name in like]
    if isinstance(returned, tuple | list):
        if len(returned) != len(like):
            raise NotAnArray(f"it returned {len(returned)} arrays, expected {len(like)}: {', '.join(like)}")
        return list(returned)
    if len(like) > 1:
        raise NotAnArray(f"it returned one {type(returned).__name__}, expected arrays for {', '.join(like)}")
    return [returned]


def like_the_state(size: Any, state: Any) -> Any:
    """A step size with axes added until it has as many as the state; its own must be the state's first ones.

    Raises:
        WrongShape: they are not.
    """
    expected = tuple(state.shape)[: len(size.shape)]
    if len(size.shape) > len(state.shape) or any(
        n not in (1, of) for n, of in zip(size.shape, expected, strict=True)
    ):
        raise WrongShape(
            f"the step size has shape {tuple(size.shape)}, which the shape of the state does not begin with"
        )
    return size.reshape(*size.shape, *[1] * (len(state.shape) - len(size.shape)))
