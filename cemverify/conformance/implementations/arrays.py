"""The libraries whose arrays an implementation may take, and all that the verifier must know about each.

JAX is an optional extra. It is imported only when `JAX` is used: an implementation in torch is judged in processes
that never load it.

JAX differentiates and maps functions, whereas torch records operations on arrays. JAX also compiles every function
for every shape, which is slow. So few shapes are tested (`compiles`), and functions are compiled once.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import cache, lru_cache
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.torch_internals import inductor_without_code, is_wrapped

ArrayName = Literal["torch", "numpy", "jax"]
Function = Callable[..., Any]
Named = dict[str, Any]  # arrays, by name

# The verifier's own derivatives of tiny arrays are quick however they are compiled; a layer's functions are compiled
# as its author would compile them.
_QUICKLY = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}


class ArrayKind(ABC):
    """What the verifier must know about a library of arrays."""

    name: ClassVar[ArrayName]  # as declarations give it
    # the features that no code with such arrays has, each with a reason
    lacks: ClassVar[Mapping[str, str]] = MappingProxyType({})
    editable: ClassVar[bool] = True  # whether an array can be written into, and be a view of another
    differentiable: ClassVar[bool] = True  # whether derivatives can be taken of what is computed
    # whether every shape is compiled, so that few are asked for and several rows cost as much as one
    compiles: ClassVar[bool] = False

    def require(self) -> None:
        """Refuses a library that is not installed.

        Raises:
            ValueError: it is not; the message says how to install it.
        """
        if importlib.util.find_spec(self.name) is None:
            how = f"pip install 'cemverify[{self.name}]'"
            raise ValueError(f"arrays={self.name!r} needs {self.name}, which is not installed: {how}")

    # --- arrays -----------------------------------------------------------------------------------------

    @abstractmethod
    def fresh(self, tensor: Tensor, device: str = "cpu") -> Any:
        """An array with the numbers and the dtype of a tensor on the CPU, in memory of its own.

        Args:
            device: where torch's arrays are put. Strides are kept if arrays have them, so views stay views.
        """

    @abstractmethod
    def like(self, values: Tensor, array: Any) -> Any:
        """Values as an array of this kind and of the dtype of another."""

    @abstractmethod
    def joined(self, arrays: Sequence[Any], axis: int) -> Any:
        """Arrays of this kind, one after the other along an axis."""

    def argument(self, tensor: Tensor, device: str = "cpu") -> Any:
        """A fresh array as the argument of a function that `called` calls: JAX takes NumPy's faster."""
        return self.fresh(tensor, device)

    def exact(self) -> AbstractContextManager[Any]:
        """A context in which arrays may have 64 bits, if a setting of the library decides that."""
        return nullcontext()

    # --- calls ------------------------------------------------------------------------------------------

    def has_deleted(self, arrays: Iterable[Any]) -> bool:  # noqa: ARG002 - JAX alone deletes arrays that are in use
        """Whether one of these no longer holds numbers."""
        return False

    def called(self, function: Function, arguments: Sequence[Any], named: Mapping[str, Any] | None = None) -> Any:
        """A call; compiled if otherwise each operation would be, unless that is impossible."""
        return function(*arguments, **(named or {}))

    def compiled(self, function: Function, *, lowered: bool = True) -> Function:
        """The function as a user of the library would compile it.

        Args:
            lowered: whether torch also rewrites what it has traced, as its default backend does.
        """
        raise NotImplementedError(self.lacks["compile"])

    def mapped(self, function: Function, axes: Any = 0) -> Function:
        """The function mapped over another axis of its arguments.

        Args:
            axes: where the axis is in each argument; None in an argument that is not mapped over.
        """
        raise NotImplementedError(self.lacks["vmap"])

    def mapped_once(self, function: Function) -> Function:
        """The function mapped over all arguments, and compiled if otherwise each operation would be."""
        return self.mapped(function)

    def unrecorded(self, function: Function) -> Function:
        """The function, called while torch records nothing."""
        unrecorded: Function = torch.no_grad()(function)
        return unrecorded

    def recorded(self, function: Function, which: Sequence[int]) -> Function:
        """The function, called while its derivatives in some of its arguments are recorded.

        Args:
            which: the places of these arguments; each is an array, or several in a tuple or a mapping.
        """
        raise NotImplementedError(self.lacks["gradients"])

    # --- derivatives ------------------------------------------------------------------------------------

    def pulled(
        self, function: Function, arrays: Named, cotangent: Any, between: Function, *, twice: bool = False
    ) -> tuple[Any, Named]:
        """The answer of a function of named arrays, and its vector-Jacobian products.

        Args:
            function: takes the arrays as a dict. cotangent: the vector, an array of the answer's shape.
            between: called before the answer is pulled back. torch's arrays record from here on.
            twice: whether torch's graph is kept and pulled back through a second time, whose products are returned.

        Returns:
            The answer, and the products by name; zeros where no gradient arrives.
        """
        raise NotImplementedError(self.lacks["gradients"])

    def derivative_along(self, function: Function, x: Any, v: Any) -> Any:
        """The derivative of a function of one argument at x along v."""
        raise NotImplementedError(self.lacks["gradients"])


class _Torch(ArrayKind):
    name = "torch"

    def fresh(self, tensor: Tensor, device: str = "cpu") -> Any:
        return _own(tensor).to(device)

    def like(self, values: Tensor, array: Any) -> Any:
        return values.to(array.dtype)

    def joined(self, arrays: Sequence[Any], axis: int) -> Any:
        return torch.cat(list(arrays), axis)

    def compiled(self, function: Function, *, lowered: bool = True) -> Function:
        torch.compiler.reset()  # otherwise earlier compilations would count against its limit of recompilations
        return torch.compile(function, backend=inductor_without_code if lowered else "eager", dynamic=False)

    def mapped(self, function: Function, axes: Any = 0) -> Function:
        # a module that is built in the call draws numbers, which its weights replace
        mapped: Function = torch.func.vmap(function, axes, randomness="same")
        return mapped

    def recorded(self, function: Function, which: Sequence[int]) -> Function:
        def recording(*arguments: Any) -> Any:
            with torch.enable_grad():
                for place in which:
                    argument = arguments[place]
                    several = tuple(argument.values()) if isinstance(argument, Mapping) else argument
                    for array in several if isinstance(several, tuple) else (several,):
                        array.requires_grad_()
                return function(*arguments)

        return recording

    def pulled(
        self, function: Function, arrays: Named, cotangent: Any, between: Function, *, twice: bool = False
    ) -> tuple[Any, Named]:
        for array in arrays.values():
            array.requires_grad_()
        answer = function(arrays)
        if not (isinstance(answer, Tensor) and answer.requires_grad and answer.shape == cotangent.shape):
            return answer, {name: torch.zeros_like(array) for name, array in arrays.items()}
        between()
        leaves, cotangent = list(arrays.values()), cotangent.to(answer.dtype)
        if twice:
            torch.autograd.grad(answer, leaves, cotangent, retain_graph=True, allow_unused=True)
        pulled = torch.autograd.grad(answer, leaves, cotangent, allow_unused=True, materialize_grads=True)
        return answer, dict(zip(arrays, pulled, strict=True))

    def derivative_along(self, function: Function, x: Any, v: Any) -> Any:
        return torch.func.jvp(function, (x,), (v,))[1]


class _NumPy(ArrayKind):
    name = "numpy"
    lacks = MappingProxyType(
        {
            "dtype:bfloat16": "NumPy has no bfloat16",
            "gradients": "NumPy arrays carry no gradients",
            "vmap": "NumPy has no vmap",
            "compile": "NumPy code is not compiled",
        }
    )
    differentiable = False

    def fresh(self, tensor: Tensor, device: str = "cpu") -> Any:  # noqa: ARG002
        return _own(tensor).numpy()

    def like(self, values: Tensor, array: Any) -> Any:
        return values.numpy().astype(array.dtype)

    def joined(self, arrays: Sequence[Any], axis: int) -> Any:
        return np.concatenate(arrays, axis)


class _Jax(ArrayKind):
    name = "jax"
    editable = False
    compiles = True

    def fresh(self, tensor: Tensor, device: str = "cpu") -> Any:  # noqa: ARG002
        with self.exact() as jax:
            return jax.device_put(self.argument(tensor))

    def like(self, values: Tensor, array: Any) -> Any:
        return self.fresh(values.to(getattr(torch, str(array.dtype))))

    def joined(self, arrays: Sequence[Any], axis: int) -> Any:
        return _jax().numpy.concatenate(arrays, axis)

    def argument(self, tensor: Tensor, device: str = "cpu") -> Any:  # noqa: ARG002
        if tensor.dtype != torch.bfloat16:  # JAX would compile a conversion for each shape
            return tensor.contiguous().numpy().copy()
        rounded: Any = tensor.double().contiguous().numpy().astype(_jax().numpy.bfloat16)
        return rounded

    def has_deleted(self, arrays: Iterable[Any]) -> bool:
        return any(is_jax_array(array) and not is_traced(array) and array.is_deleted() for array in arrays)

    @contextmanager
    def _configured(self, **options: Any) -> Iterator[Any]:
        jax = _jax()
        before = {name: getattr(jax.config, name) for name in options}
        try:
            for name, value in options.items():
                jax.config.update(name, value)
            yield jax
        finally:
            for name, value in before.items():
                jax.config.update(name, value)

    def exact(self) -> AbstractContextManager[Any]:
        """Enables 64-bit arrays, which JAX would round to float32, and restores the setting; yields the module."""
        return self._configured(jax_enable_x64=True)

    def narrow(self) -> AbstractContextManager[Any]:
        """Disables 64-bit arrays, gives matrix products another precision, and restores both settings."""
        precision = "high" if _jax().config.jax_default_matmul_precision == "highest" else "highest"
        return self._configured(jax_enable_x64=False, jax_default_matmul_precision=precision)

    def called(self, function: Function, arguments: Sequence[Any], named: Mapping[str, Any] | None = None) -> Any:
        with suppress(Exception):  # it may branch on values
            return _jitted(function)(*arguments, **(named or {}))
        own, more = _jax().device_put((tuple(arguments), dict(named or {})))
        return function(*own, **more)

    def forget(self) -> None:
        """Lets the next call of a function run its Python again, which a call of its compiled form does not."""
        _jax().clear_caches()

    def compiled(self, function: Function, *, lowered: bool = True) -> Function:  # noqa: ARG002 - jit always does
        compiled: Function = _jax().jit(function)
        return compiled

    def compiled_quickly(self, function: Function) -> Function:
        """A function of the verifier's own, compiled for each shape without LLVM's costly optimisations."""
        compiled: Function = _jax().jit(function, compiler_options=_QUICKLY)
        return compiled

    def mapped(self, function: Function, axes: Any = 0) -> Function:
        mapped: Function = _jax().vmap(function, axes)
        return mapped

    def mapped_once(self, function: Function) -> Function:
        mapped: Function = _mapped_once(function)
        return mapped

    def recorded(self, function: Function, which: Sequence[int]) -> Function:
        def recording(*arguments: Any) -> Any:
            def of_some(*some: Any) -> Any:
                values = dict(enumerate(arguments)) | dict(zip(which, some, strict=True))
                return function(*values.values())

            return _jax().vjp(of_some, *(arguments[place] for place in which))[0]

        return recording

    def pulled(
        self,
        function: Function,
        arrays: Named,
        cotangent: Any,
        between: Function,
        *,
        twice: bool = False,  # noqa: ARG002
    ) -> tuple[Any, Named]:
        answer, pull = _jax().vjp(function, arrays)
        between()
        return answer, pull(cotangent)[0]

    def derivative_along(self, function: Function, x: Any, v: Any) -> Any:
        return _jax().jvp(function, (x,), (v,))[1]

    def gradient(self, function: Function) -> Function:
        """The gradient of the sum of a function's values in its first argument, as a function."""
        gradient: Function = _jax().grad(lambda first, *rest: function(first, *rest).sum())
        return gradient

    def gradient_at(self, function: Function, arguments: Sequence[Any]) -> Any:
        """The value of that gradient; compiled unless that is impossible."""
        with suppress(Exception):
            return _jitted_gradient(function)(*arguments)
        return self.gradient(function)(*_jax().device_put(tuple(arguments)))


TORCH, NUMPY, JAX = _Torch(), _NumPy(), _Jax()
ARRAY_KINDS: Mapping[str, ArrayKind] = MappingProxyType({kind.name: kind for kind in (TORCH, NUMPY, JAX)})


def all_finite(array: Tensor) -> bool:
    """Whether no number is NaN or infinite. Mostly the sum tells, in a quarter of the time; but it may overflow."""
    return math.isfinite(array.detach().sum()) or bool(array.isfinite().all())


def is_jax_array(value: Any) -> bool:
    """Whether it is a JAX array, or stands for one in a trace. What it says of itself may be untrue."""
    jax = sys.modules.get("jax")
    return jax is not None and (type(value) is _type_of_jax() or issubclass(type(value), jax.core.Tracer))


def is_traced(array: Any) -> bool:
    """Whether it stands for an array that is mapped, differentiated by a transform, or compiled."""
    if isinstance(array, Tensor):
        return is_wrapped(array)
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


def _jax() -> Any:
    return importlib.import_module("jax")


@cache
def _type_of_jax() -> type:
    return type(_jax().numpy.zeros(()))


# The compiled form of each function is kept, because JAX compiles a new function object anew.


@lru_cache(maxsize=16)
def _jitted(function: Any) -> Any:
    return JAX.compiled(function)


@lru_cache(maxsize=16)
def _jitted_gradient(function: Any) -> Any:
    return JAX.compiled_quickly(JAX.gradient(function))


@lru_cache(maxsize=8)
def _mapped_once(function: Any) -> Any:
    return JAX.compiled(JAX.mapped(function))


def _own(tensor: Tensor) -> Tensor:
    return tensor.clone(memory_format=torch.preserve_format)
