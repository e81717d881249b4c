"""Where a tensor is computed: on its device, or on the one that the meta device stands in for, compiled or not."""

from __future__ import annotations

import contextlib
import os
import shutil
import sysconfig
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor

_meta = [("cpu", False)]


def kind(tensor: Tensor) -> str:
    """The type of the tensor's device, "cpu" or "cuda"."""
    return _meta[-1][0] if tensor.is_meta else tensor.device.type


def is_compiled(tensor: Tensor) -> bool:
    """Whether computations with it go through torch.compile."""
    return torch.compiler.is_compiling() or (tensor.is_meta and _meta[-1][1])


def triton_missing() -> str | None:
    """What Triton lacks to compile a kernel on a GPU, in words; None if nothing."""
    if find_spec("triton") is None:
        return "Triton, and it is not installed (pip install triton)"
    if not any(name and shutil.which(name) for name in (os.environ.get("CC"), "gcc", "clang", "cc")):
        return "a C compiler, and there is none (CC, gcc, clang, cc)"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python.h, and it is not there (a package such as python3-dev has it)"
    return None


@contextlib.contextmanager
def meta_stands_for(device: str, *, compiled: bool) -> Iterator[None]:
    """A context in which tensors on the meta device count as on this device wherever a path is chosen."""
    _meta.append((device.partition(":")[0], compiled))
    try:
        yield
    finally:
        _meta.pop()
