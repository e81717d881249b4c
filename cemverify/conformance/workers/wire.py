"""The messages between the judge and the implementation's process, with a deadline for each.

Requests are pickled: they come from the judge. Answers are JSON and raw arrays, since unpickling what the
implementation's process sends would run its code in the judge's. An answer can be None, a truth value, a number, a
word, an array, or a list or mapping of these.
"""

from __future__ import annotations

import copyreg
import io
import json
import math
import pickle
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

Values = np.ndarray[Any, Any]

_LENGTH = 8  # bytes that hold the number of bytes to follow
_MOMENT = 0.25  # seconds of one wait
_HEADER = 4  # bytes that hold the length of the JSON
_LONGEST = 2**28  # bytes of one answer
_LONGEST_HEADER = 2**23  # bytes of JSON in it


class Overdue(Exception):
    """The other process sent nothing before the deadline."""


class Closed(Exception):
    """The other process closed its end of the connection: nothing more will come."""


class Unreadable(Exception):
    """What the other process sent cannot be read as a message."""


@dataclass(frozen=True)
class Channel:
    """One end of a connection; every wait has a deadline."""

    socket: socket.socket
    meanwhile: Callable[[], None] = lambda: None  # called repeatedly during each wait

    def send(self, content: bytes, until: float = math.inf) -> None:
        """Sends bytes.

        Args:
            until: a time of the monotonic clock.

        Raises:
            Overdue: the other end has not taken them by then. Closed: the connection is closed.
        """
        content = len(content).to_bytes(_LENGTH, "little") + content
        view, sent = memoryview(content), 0
        while sent < len(content):
            sent += self._once(partial(self.socket.send, view[sent:]), until)

    def _once(self, operation: Callable[[], int], until: float) -> int:
        """An operation of the socket, repeated until it has a result."""
        while True:
            try:
                self.socket.settimeout(min(_left(until), _MOMENT))
                return operation()
            except TimeoutError:
                self.meanwhile()
            except OSError:
                raise Closed from None

    def arrives(self, until: float) -> bool:
        """Waits until then for bytes or the end of the connection; returns whether either came."""
        try:
            self._once(lambda: len(self.socket.recv(1, socket.MSG_PEEK)), until)
        except Overdue:
            return False
        except Closed:  # `receive` will raise it
            return True
        return True

    def receive(self, until: float = math.inf) -> bytes:
        """The next message's bytes.

        Args:
            until: a time of the monotonic clock.

        Raises:
            Overdue: they have not all arrived by then. Closed: the other end is closed.
            Unreadable: there are too many of them.
        """
        length = int.from_bytes(self._exactly(_LENGTH, until), "little")
        if length > _LONGEST:
            raise Unreadable(f"it announced {length} bytes")
        return self._exactly(length, until)

    def _exactly(self, length: int, until: float) -> bytes:
        content = bytearray(length)
        view, got = memoryview(content), 0
        while got < length:
            n = self._once(partial(self.socket.recv_into, view[got:]), until)
            if not n:
                raise Closed
            got += n
        return bytes(content)


def _left(until: float) -> float:
    """Seconds until then."""
    left = until - time.monotonic()
    if left <= 0:
        raise Overdue
    return left


# --- requests ---------------------------------------------------------------------------------------


def request(content: Any) -> bytes:
    """A request as bytes. Tensors keep their dtype, memory layout and sharing (x may *be* h)."""
    buffer = io.BytesIO()
    pickler = pickle.Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL)
    pickler.dispatch_table = _TABLE
    pickler.dump(content)
    return buffer.getvalue()


def requested(content: bytes) -> Any:
    """The request in a message, with its arrays."""
    return pickle.loads(content)  # noqa: S301 - from the judge


def _reduced(tensor: Tensor) -> tuple[Any, ...]:
    tensor = tensor.detach()
    if tensor.dtype == torch.bfloat16:  # NumPy has no bfloat16
        return _narrowed, (tensor.float(),)
    order = None
    if not tensor.is_contiguous():
        strides = tensor.stride()
        order = sorted(range(tensor.dim()), key=lambda axis: -strides[axis])
        dense = tensor.permute(order)
        # an array with gaps or repeats is laid out densely, as a fresh copy of it would be
        tensor, order = (dense, order) if dense.is_contiguous() else (tensor.contiguous(), None)
    values = tensor.numpy()
    return _rebuilt, (values.tobytes(), values.dtype.str, values.shape, order)


def _rebuilt(content: bytes, dtype: str, shape: tuple[int, ...], order: list[int] | None) -> Tensor:
    tensor = torch.from_numpy(np.frombuffer(bytearray(content), dtype).reshape(shape))
    return tensor if order is None else tensor.permute([order.index(axis) for axis in range(len(order))])


def _narrowed(tensor: Tensor) -> Tensor:
    return tensor.to(torch.bfloat16)


_TABLE = copyreg.dispatch_table | {Tensor: _reduced}


# --- answers ----------------------------------------------------------------------------------------


def answer(content: Mapping[str, Any]) -> bytes:
    """An answer as bytes.

    Raises:
        TypeError: it holds something that cannot be sent.
    """
    arrays: list[Values] = []
    tree = _tree(content, arrays)
    header = json.dumps([tree, [[array.dtype.str, list(array.shape)] for array in arrays]]).encode()
    return b"".join((len(header).to_bytes(_HEADER, "little"), header, *(array.tobytes() for array in arrays)))


def answered(content: bytes) -> Any:
    """The answer.

    Raises:
        Unreadable: the bytes are no answer.
    """
    try:
        end = _HEADER + int.from_bytes(content[:_HEADER], "little")
        if end > _LONGEST_HEADER:
            raise ValueError("too much JSON")
        tree, described = json.loads(content[_HEADER:end])
        arrays: list[Values] = []
        for dtype, shape in described:
            kind = np.dtype(str(dtype))
            if kind.kind not in "fiub":
                raise ValueError(f"an array of {kind}")
            count = math.prod(int(n) for n in shape)
            array = np.frombuffer(content, kind, count, end).reshape(shape)
            arrays.append(array.copy())
            end += array.nbytes
        return _value(tree, arrays)
    except Exception as error:
        raise Unreadable("it sent bytes that are no answer") from error


def _tree(value: Any, arrays: list[Values]) -> Any:
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if np.isfinite(value) else {"float": repr(value)}
        case Tensor():
            arrays.append(value.detach().cpu().contiguous().numpy())
            return {"tensor": len(arrays) - 1}
        case np.ndarray():
            arrays.append(value)
            return {"array": len(arrays) - 1}
        case Mapping():
            return {"mapping": {str(key): _tree(item, arrays) for key, item in value.items()}}
        case list() | tuple():
            return [_tree(item, arrays) for item in value]
    raise TypeError(f"a {type(value).__name__} does not travel")


def _value(tree: Any, arrays: list[Values]) -> Any:
    match tree:
        case {"float": str(text)}:
            return float(text)
        case {"tensor": int(i)}:
            return torch.from_numpy(arrays[i])
        case {"array": int(i)}:
            return arrays[i]
        case {"mapping": dict(items)}:
            return {key: _value(item, arrays) for key, item in items.items()}
        case list(items):
            return tuple(_value(item, arrays) for item in items)
        case None | bool() | int() | float() | str():
            return tree
    raise ValueError("it is no value")
