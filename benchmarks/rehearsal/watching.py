"""Watches operations on fake tensors on "cuda": where the CPU would wait, matrix products by dtype, memory."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify.cem.torch_internals import FakeTensorMode, TorchDispatchMode, tree_leaves

ROOT = Path(__file__).parents[2]

# Operations that read a value from the device, or whose output shape only the device knows.
_READS = frozenset({"_local_scalar_dense", "equal", "is_nonzero"})
_SHAPES = frozenset({"nonzero", "masked_select", "unique_dim", "_unique2", "unique_consecutive"})
_PRODUCTS = frozenset(
    {"mm", "bmm", "addmm", "baddbmm", "addbmm", "mv", "dot"}
    | {"_scaled_dot_product_flash_attention", "_scaled_dot_product_efficient_attention"}
)


class Watch(TorchDispatchMode):
    """Records what happens on the device."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        # why and where the CPU waits for the device, or the device for a copy from the CPU, and how often
        self.waits: Counter[str] = Counter()
        self.products: Counter[torch.dtype] = Counter()  # matrix products by the dtype of their first operand
        self.now = 0  # bytes in use on the device
        self._alive: dict[int, int] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        name = func.overloadpacket.__name__
        if wait := _wait(name, args, kwargs or {}):
            self.waits[f"{wait}, {_place()}"] += 1
        if name == "_local_scalar_dense":
            return {torch.bool: True}.get(args[0].dtype, 1 if not args[0].is_floating_point() else 1.0)
        if name in _PRODUCTS:
            self.products[args[1 if name in ("addmm", "baddbmm", "addbmm") else 0].dtype] += 1
        out = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(out):
            if isinstance(tensor, Tensor) and tensor.is_cuda:
                self._count(tensor.untyped_storage())
        return out

    def _count(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self._alive:
            self._alive[key] = storage.nbytes()
            self.now += storage.nbytes()
            weakref.finalize(storage, self._free, key)

    def _free(self, key: int) -> None:
        self.now -= self._alive.pop(key)


def _wait(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    """Why the CPU waits for the device in this operation; None if it does not."""
    tensors = [t for t in tree_leaves((args, dict(kwargs))) if isinstance(t, Tensor)]
    if not any(t.is_cuda for t in tensors) and "device" not in kwargs:
        return None
    if name in _READS:
        return "reads a value"
    masked = name in ("index", "index_put", "index_put_") and any(t.dtype == torch.bool for t in tensors[1:])
    if name in _SHAPES or masked:
        return "a shape follows from values"
    source, crosses = args[0] if args else None, "copies between CPU and GPU"
    if not isinstance(source, Tensor):
        return None
    if name == "copy_":
        asynchronous = len(args) > 2 and args[2]
        return crosses if args[1].is_cuda != source.is_cuda and not asynchronous else None
    target = kwargs.get("device")
    if name == "_to_copy" and target is not None and not kwargs.get("non_blocking"):
        return crosses if source.is_cuda != (torch.device(target).type == "cuda") else None
    return None


def _place() -> str:
    """The innermost line of our code that called the operation."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        path = Path(frame.f_code.co_filename)
        if path.is_relative_to(ROOT) and not path.is_relative_to(Path(__file__).parent):
            return f"{path.relative_to(ROOT)}:{frame.f_lineno}"
        frame = frame.f_back
    return "torch"


@contextlib.contextmanager
def a_gpu() -> Iterator[Watch]:
    """Tensors made inside are fake, and those made without a device are on "cuda"."""
    with contextlib.ExitStack() as stack:
        if not torch.cuda.is_available():
            # autocast asks the Python side of torch, which the stand-in does not cover
            absent = "torch.cuda.amp.common.amp_definitely_not_available"
            stack.enter_context(mock.patch(absent, return_value=False))
            stack.enter_context(mock.patch("torch.cuda.is_bf16_supported", return_value=True))
            stack.enter_context(mock.patch.object(F, "scaled_dot_product_attention", _attention))
        stack.enter_context(mock.patch("torch.cuda.synchronize"))
        stack.enter_context(mock.patch.object(torch.nn.Module, "to", moved))
        stack.enter_context(FakeTensorMode(allow_non_fake_inputs=True))  # batches come from the CPU
        watch = stack.enter_context(Watch())
        stack.enter_context(torch.device("cuda"))
        yield watch


def moved(module: torch.nn.Module, to: Any) -> torch.nn.Module:
    """Replaces `module.to(device)` and `module.to(dtype)`, which torch refuses for fake parameters."""
    for part in module.modules():
        for name, parameter in part._parameters.items():
            if parameter is not None:
                part._parameters[name] = torch.nn.Parameter(parameter.detach().to(to), parameter.requires_grad)
    return module


def _attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    attn_mask: Tensor | None = None,
    *,
    is_causal: bool = False,
    scale: float | None = None,
) -> Tensor:
    """The kernel that a torch built for GPUs takes: flash attention, or one that accepts a mask."""
    if torch.is_autocast_enabled("cuda"):
        narrow = torch.get_autocast_dtype("cuda")
        q, k, v = q.to(narrow), k.to(narrow), v.to(narrow)
        attn_mask = None if attn_mask is None else attn_mask.to(narrow)
    width = q.shape[-1]
    q, k, v = (F.pad(t, (0, -width % 8)) for t in (q, k, v))  # as torch does: kernels need multiples of 8
    with torch.autocast("cuda", enabled=False):
        if attn_mask is None and q.dtype in (torch.bfloat16, torch.float16):
            flash: Any = torch.ops.aten._scaled_dot_product_flash_attention
            out: Tensor = flash(q, k, v, 0.0, is_causal, False, scale=scale)[0]
            return out[..., :width]
        if q.dtype == torch.float64:
            scores = q @ k.mT * (scale or 1.0)
            return (torch.softmax(scores if attn_mask is None else scores + attn_mask, -1) @ v)[..., :width]
        efficient: Any = torch.ops.aten._scaled_dot_product_efficient_attention
        bias = None if attn_mask is None else attn_mask.expand(*q.shape[:3], k.shape[2])
        differentiated = torch.is_grad_enabled() and any(t.requires_grad for t in (q, k, v))
        out = efficient(q, k, v, bias, differentiated, 0.0, is_causal, scale=scale)[0]
        return out[..., :width]
