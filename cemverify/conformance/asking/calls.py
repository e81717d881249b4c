"""Calls an implementation with fresh copies of its own kind of array, and turns misbehaviour into typed faults."""

from __future__ import annotations

import copy
import importlib
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from cemverify.conformance.asking.process_state import ProcessState
from cemverify.conformance.implementations.contract import Implementation, Subject
from cemverify.conformance.implementations.faults import (
    Fault,
    NotAnArray,
    NotFinite,
    OutOfMemory,
    Raised,
    WrongShape,
    advice,
    ran_out,
    words,
)
from cemverify.conformance.questions.cases import Case


class Watch(Protocol):
    """Is informed of calls and questions, so that another process can see a hang and what was asked then."""

    def calling(self, started: float) -> None:
        """A call to the implementation begins (at this time) or ends (0)."""

    def asking(self, question: Any) -> None:
        """A property is about to ask this question."""


class Nobody:
    """Does nothing: for runs in which a hang cannot be interrupted."""

    def calling(self, started: float) -> None:
        """Ignored."""

    def asking(self, question: Any) -> None:
        """Ignored."""


NOBODY = Nobody()


@dataclass(frozen=True)
class Caller:
    """Calls one implementation.

    Attributes:
        subject: the implementation. dtype: arrays are rounded to it. device: of torch arrays.
        watch: informed of every call.
    """

    subject: Subject
    dtype: torch.dtype = torch.float64
    device: str = "cpu"
    watch: Watch = field(default=NOBODY, repr=False)

    @property
    def functions(self) -> Mapping[str, Callable[..., Any]]:
        """The functions of a CEM implementation."""
        assert isinstance(self.subject, Implementation)
        return self.subject.functions

    def at(self, dtype: torch.dtype) -> Caller:
        """The same caller with arrays of another dtype."""
        return replace(self, dtype=dtype)

    def output(self, case: Case) -> Tensor:
        """The layer's x^(T): (B, J, D), float64 on the CPU.

        Raises:
            Fault: the call returned nothing that could be compared.
        """
        shape = case.h.shape if case.layer == "block" else case.x.shape
        return self._answer(self._bound(case.layer, case), shape)

    def decoded(self, case: Case) -> Tensor:
        """Incremental self-attention of h: (B, J, D)."""
        return self._answer(self._bound("decode", case), case.h.shape)

    def energy(self, case: Case) -> Tensor:
        """The stated energy at x: (B, J)."""
        return self._answer(self._bound(f"{case.layer}_energy", case), case.x.shape[:2])

    def raw(self, name: str, case: Case) -> Any:
        """What the function of that name returns, unchecked.

        Raises:
            Raised: it raised; the exception is the cause.
        """
        call = self._bound(name, case)
        with self.guarded():
            return call()

    def call(self, name: str, case: Case, x: Any, h: Any, weights: dict[str, Any]) -> Any:
        """The same for given arrays."""
        arguments = (h, weights) if name in ("block", "decode") else (x, h, weights)
        with self.guarded():
            return self.functions[name](*arguments, copy.deepcopy(case.config))

    def arguments(self, case: Case) -> tuple[Any, Any, dict[str, Any]]:
        """x, h and the weights as arrays of the implementation's kind that share nothing with the case."""
        return self.array(case.x), self.array(case.h), {name: self.array(w) for name, w in case.weights.items()}

    def array(self, tensor: Tensor) -> Any:
        """A fresh array of the implementation's kind. Strides are kept, so views stay views."""
        if tensor.dtype.is_floating_point:
            tensor = tensor.to(self.dtype)
        own = tensor.clone(memory_format=torch.preserve_format)
        match self.subject.arrays:
            case "torch":
                return own.to(self.device)
            case "numpy":
                return own.numpy()
            case "jax":
                return jax_array(own)

    def _bound(self, name: str, case: Case) -> Callable[[], Any]:
        """Calls one function on fresh copies of the case."""
        x, h, weights = self.arguments(case)
        arguments = (h, weights) if name in ("block", "decode") else (x, h, weights)
        config = copy.deepcopy(case.config)  # frozen, but whoever wants to can thaw it
        return lambda: self.functions[name](*arguments, config)

    @contextmanager
    def guarded(self, grace: float = 0.0) -> Iterator[None]:
        """Watches a call, and restores the state of the process afterwards: modes, defaults, the working folder.

        Args:
            grace: seconds that it may take beyond the usual limit, because it also compiles.

        Raises:
            Raised: it raised an exception; SystemExit counts, the user's interrupt does not.
            OutOfMemory: it asked for more memory than there is.
        """
        before, own = ProcessState.now(), os.getpid()
        self.watch.calling(time.monotonic() + grace)
        try:
            with jax_x64() if self.subject.arrays == "jax" else nullcontext():
                yield
        except (Fault, KeyboardInterrupt):
            raise
        except BaseException as error:
            if ran_out(error):
                traceback.clear_frames(error.__traceback__)  # which hold what filled it
                raise OutOfMemory(f"it ran out of memory: {words(error)}") from None
            raise Raised(f"it raised {words(error)}{advice(error, self.dtype)}") from error
        finally:
            if os.getpid() != own:
                os._exit(0)  # a fork of the implementation's that came back from the call
            self.watch.calling(0.0)
            before.restore()

    def _answer(self, call: Callable[[], Any], shape: torch.Size) -> Tensor:
        with self.guarded():
            answer = as_tensor(call(), shape)  # reading the array may be what hangs
        if not bool(answer.isfinite().all()):
            raise NotFinite(f"{int((~answer.isfinite()).sum())} of {answer.numel()} values are NaN or infinite")
        return answer


def as_tensor(returned: Any, shape: torch.Size | None = None) -> Tensor:
    """A returned array of real numbers as a float64 tensor on the CPU, with its own memory.

    Args:
        shape: the expected shape, if any; checked before a possibly huge array is copied.

    Raises:
        NotAnArray: it is not such an array. WrongShape: it has another shape.
    """
    try:
        if issubclass(type(returned), Tensor):  # `isinstance` believes an object that lies about its class
            plain = _without_subclass(returned)
            if plain.is_complex() or plain.layout != torch.strided or plain.is_quantized or plain.is_meta:
                raise NotAnArray(f"it returned a tensor of {plain.dtype}, {plain.layout}, on {plain.device}")
            _check_shape(plain.shape, shape)
            return plain.detach().to("cpu", torch.float64, copy=True)
        if not hasattr(returned, "__array__") or not hasattr(returned, "shape"):
            raise NotAnArray(f"it returned a {type(returned).__name__}, not an array")
        # unbound here too; a lazy object is read once, and what it gave then is what is judged
        subclass = issubclass(type(returned), np.ndarray)
        values = np.ndarray.view(returned, np.ndarray) if subclass else np.asarray(returned)
        # V is what NumPy calls JAX's bfloat16
        if values.dtype.kind not in "fiubV":
            raise NotAnArray(f"it returned an array of {values.dtype}")
        _check_shape(values.shape, shape)
        return torch.from_numpy(np.array(values, dtype=np.float64))
    except Exception as error:
        if isinstance(error, Fault) or ran_out(error):
            raise
        raise NotAnArray(f"its result cannot be read as an array: {words(error)}") from error


def _without_subclass(tensor: Tensor) -> Tensor:
    """The values as a plain tensor, without the behaviour of a subclass."""
    if type(tensor) is Tensor:
        return tensor
    with torch._C.DisableTorchFunctionSubclass():
        return Tensor.as_subclass(tensor, Tensor)  # unbound: a subclass may override the method


def _check_shape(shape: Sequence[int], due: torch.Size | None) -> None:
    if due is not None and tuple(shape) != tuple(due):
        raise WrongShape(f"it returned shape {tuple(shape)}, expected {tuple(due)}")


@contextmanager
def jax_x64() -> Iterator[Any]:
    """Enables 64-bit arrays in JAX, which would otherwise round to float32, and restores the setting afterwards."""
    jax: Any = importlib.import_module("jax")
    before = jax.config.jax_enable_x64
    jax.config.update("jax_enable_x64", True)
    try:
        yield jax
    finally:
        jax.config.update("jax_enable_x64", before)


def jax_array(tensor: Tensor) -> Any:
    """The tensor as a JAX array of the same dtype."""
    with jax_x64() as jax:
        return jax.device_put(numpy_for_jax(tensor))


def numpy_for_jax(tensor: Tensor) -> Any:
    """The tensor as a NumPy array of the same dtype; JAX would compile a conversion for each shape."""
    if tensor.dtype != torch.bfloat16:
        return tensor.contiguous().numpy().copy()
    jax: Any = importlib.import_module("jax")
    return tensor.double().contiguous().numpy().astype(jax.numpy.bfloat16)
