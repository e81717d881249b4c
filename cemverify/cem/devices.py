"""Where a tensor is computed: on its device, or on the one that the meta device stands in for, compiled or not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor

_meta = [("cpu", False)]


def kind(tensor: Tensor) -> str:
    """As "cpu" or "cuda"."""
    return _meta[-1][0] if tensor.is_meta else tensor.device.type


def is_compiled(tensor: Tensor) -> bool:
    """Whether what is computed of it goes through torch.compile."""
    return torch.compiler.is_compiling() or (tensor.is_meta and _meta[-1][1])


@contextlib.contextmanager
def meta_stands_for(device: str, *, compiled: bool) -> Iterator[None]:
    """Inside, tensors on the meta device count as on that one wherever a path is chosen."""
    _meta.append((device.partition(":")[0], compiled))
    try:
        yield
    finally:
        _meta.pop()
