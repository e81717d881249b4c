"""Calling an implementation: arrays in its own kind, a fresh copy each time, and typed faults."""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from cemverify.conformance.cases import Case
from cemverify.conformance.contract import EnergyLayer, Implementation, Subject
from cemverify.conformance.faults import NotAnArray, NotFinite, Raised, WrongShape


class Watch(Protocol):
    """Told when a call into the implementation begins (a time) and ends (0), so that a hang can be seen."""

    def __call__(self, started: float) -> None: ...


def nobody_watches(started: float) -> None:
    """Where hangs cannot be cut short anyway."""


@dataclass(frozen=True)
class Caller:
    """Asks one implementation questions.

    Attributes:
        subject: the implementation. dtype: what arrays are rounded to. device: where torch arrays live.
        watch: told of every call.
    """

    subject: Subject
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    watch: Watch = field(default=nobody_watches, repr=False)

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions of the first door."""
        assert isinstance(self.subject, Implementation)
        return self.subject.functions

    def at(self, dtype: torch.dtype) -> Caller:
        """The same with other arrays."""
        return replace(self, dtype=dtype)

    def output(self, case: Case) -> Tensor:
        """The layer's x^(T): (B, J, D), float64 on the CPU.

        Raises:
            Fault: the call gave no answer to compare.
        """
        function = self.functions[case.layer]
        if case.layer == "block":
            return self._answer(lambda: self.raw(function, case, with_x=False), case.h.shape)
        return self._answer(lambda: self.raw(function, case), case.x.shape)

    def decoded(self, case: Case) -> Tensor:
        """Incremental attention of h on itself: (B, J, D)."""
        return self._answer(lambda: self.raw(self.functions["decode"], case, with_x=False), case.h.shape)

    def energy(self, case: Case) -> Tensor:
        """The stated energy at x: (B, J)."""
        return self._answer(lambda: self.raw(self.functions[f"{case.layer}_energy"], case), case.x.shape[:2])

    def raw(self, function: Callable[..., Any], case: Case, *, with_x: bool = True) -> Any:
        """One unguarded call on fresh copies; what it returns is whatever it returns."""
        x, h, weights = self.arguments(case)
        arguments = (x, h, weights, case.config) if with_x else (h, weights, case.config)
        with self._watched():
            return function(*arguments)

    def arguments(self, case: Case) -> tuple[Any, Any, dict[str, Any]]:
        """x, h and the weights as the implementation's own arrays, nothing shared with the case."""
        return self.array(case.x), self.array(case.h), {name: self.array(w) for name, w in case.weights.items()}

    def layer_update(self, x: Tensor, memory: Tensor) -> Tensor:
        """An energy layer's update: (B, J, D)."""
        assert isinstance(self.subject, EnergyLayer)
        return self._answer(self._pair(self.subject.update, x, memory), x.shape)

    def layer_energy(self, x: Tensor, memory: Tensor) -> Tensor:
        """An energy layer's energy: (B, J)."""
        assert isinstance(self.subject, EnergyLayer)
        assert self.subject.energy is not None
        return self._answer(self._pair(self.subject.energy, x, memory), x.shape[:2])

    def array(self, tensor: Tensor) -> Any:
        """A fresh array of the implementation's kind; strides are kept, so that views stay views."""
        if tensor.dtype.is_floating_point:
            tensor = tensor.to(self.dtype)
        copy = tensor.clone(memory_format=torch.preserve_format)
        match self.subject.arrays:
            case "torch":
                return copy.to(self.device)
            case "numpy":
                return copy.numpy()
            case "jax":
                return jax_array(copy)

    def _pair(self, function: Callable[..., Any], x: Tensor, memory: Tensor) -> Callable[[], Any]:
        def call() -> Any:
            arguments = self.array(x), self.array(memory)
            with self._watched():
                return function(*arguments)

        return call

    @contextmanager
    def _watched(self) -> Iterator[None]:
        self.watch(time.monotonic())
        try:
            yield
        finally:
            self.watch(0.0)

    def _answer(self, call: Callable[[], Any], shape: torch.Size) -> Tensor:
        try:
            returned = call()
        except Exception as error:
            raise Raised(f"it raised {type(error).__name__}: {error}") from error
        answer = as_tensor(returned)
        if answer.shape != shape:
            raise WrongShape(f"it returned shape {tuple(answer.shape)} where {tuple(shape)} is due")
        if not bool(answer.isfinite().all()):
            raise NotFinite(f"{int((~answer.isfinite()).sum())} of {answer.numel()} values are NaN or infinite")
        return answer


def as_tensor(returned: Any) -> Tensor:
    """Whatever array came back, as a float64 tensor on the CPU.

    Raises:
        NotAnArray: it is no array of numbers.
    """
    if isinstance(returned, Tensor):
        if returned.is_complex():
            raise NotAnArray("it returned complex numbers")
        return returned.detach().to("cpu", torch.float64)
    if not hasattr(returned, "__array__") or not hasattr(returned, "shape"):
        raise NotAnArray(f"it returned a {type(returned).__name__}, not an array")
    try:
        import numpy as np

        return torch.from_numpy(np.array(returned, dtype=np.float64))
    except (TypeError, ValueError) as error:
        raise NotAnArray(f"it returned an array that is not numeric: {error}") from error


def jax_array(tensor: Tensor) -> Any:
    """The tensor as a JAX array of the same dtype; 64-bit arrays are enabled, or JAX would round them."""
    jax: Any = importlib.import_module("jax")
    jax.config.update("jax_enable_x64", True)
    name = str(tensor.dtype).removeprefix("torch.")
    wide = tensor.double() if tensor.is_floating_point() else tensor  # NumPy has no bfloat16 to go through
    return jax.numpy.asarray(wide.contiguous().numpy()).astype(name)
