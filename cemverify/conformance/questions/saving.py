"""Questions as plain data that can be sent between processes, saved in files, and read back exactly.

Arrays become NumPy arrays and keep their strides and their sharing (x may *be* h). Everything else becomes a tree
that JSON can represent. Only dataclasses of this package are read back, so a file from elsewhere cannot create other
objects.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Tree = Any  # anything that JSON can hold
Values = np.ndarray[Any, Any]

# Allowed dtypes, and the most numbers over which an array may be laid out.
_DTYPES = ("float64", "float32", "float16", "bfloat16", "complex128", "complex64",
           "int64", "int32", "int16", "int8", "uint8", "bool")  # fmt: skip
_WIDEST = 2**26


@dataclass(frozen=True)
class SavedCall:
    """One call that a check made to a function of the implementation."""

    function: str  # its name
    arguments: Tree  # the tree of its arrays by name ("x", "h", "weights" ...)
    config: Tree  # its tree
    changed: bool  # whether the call changed its arrays
    fault: str | None  # what it did instead of answering, if anything
    # answer, expected, budget: names of arrays: the result, the right one, how far apart they may be
    answer: str | None
    expected: str | None
    budget: str | None


@dataclass(frozen=True)
class Saved:
    """Everything that is needed to repeat a case."""

    question: Tree  # the tree of the property's question
    # dtype, device: those of the arrays in the calls
    dtype: str
    device: str
    kind: str  # which arrays the implementation takes: "torch", "numpy" or "jax"
    arrays: Mapping[str, Values] = field(repr=False)  # by their names in the trees
    calls: Sequence[SavedCall] = field(repr=False)  # the check's calls to the implementation, in order
    # for an energy layer, the worst residual as a sum of the answers times weights
    linear: Mapping[str, Any] | None = field(default=None, repr=False)
    # if a call did not return, the seconds that it had; otherwise None
    within: float | None = None
    # for an energy layer with parameters: names of arrays by the parameters' own names
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Packing:
    """Trees that share one pool of arrays."""

    arrays: dict[str, Values] = field(default_factory=dict)
    names: dict[int, str] = field(default_factory=dict)
    alive: list[Tensor] = field(default_factory=list)  # keeps them alive, so that no id is reused

    def tree(self, value: Any, name: str = "value") -> Tree:
        """The tree of a value made of dataclasses, mappings, sequences, tensors, numbers and words.

        Raises:
            TypeError: it contains anything else.
        """
        match value:
            case None | bool() | int() | str():
                return value
            case float():
                return value if math.isfinite(value) else {"float": repr(value)}
            case Tensor():
                return self._array(value, name)
            case torch.dtype():
                return {"dtype": _word(value)}
            case Mapping():
                return {"mapping": {str(key): self.tree(item, f"{name}.{key}") for key, item in value.items()}}
            case list() | tuple():
                return {"sequence": [self.tree(item, f"{name}.{i}") for i, item in enumerate(value)]}
        if is_dataclass(value) and not isinstance(value, type):
            kind = type(value)
            content = {f.name: self.tree(getattr(value, f.name), f"{name}.{f.name}") for f in fields(value) if f.init}
            return {"dataclass": f"{kind.__module__}:{kind.__qualname__}", "fields": content}
        raise TypeError(f"a {type(value).__name__} cannot be saved")

    def add(self, name: str, values: Tensor) -> str:
        """Puts an array into the pool and returns its name there. Equal arrays with the same name are stored once."""
        wide = values.float() if values.dtype == torch.bfloat16 else values
        content = wide.detach().cpu().contiguous().numpy().copy()
        unique, i = name, 1
        while unique in self.arrays:
            other = self.arrays[unique]
            if (other.dtype, other.shape, other.tobytes()) == (content.dtype, content.shape, content.tobytes()):
                return unique
            i += 1
            unique = f"{name}-{i}"
        self.arrays[unique] = content
        return unique

    def _array(self, values: Tensor, name: str) -> Tree:
        if id(values) not in self.names:
            self.alive.append(values)
            self.names[id(values)] = self.add(name.removeprefix("value."), values)
        tree: dict[str, Any] = {"array": self.names[id(values)]}
        if values.dtype != torch.float64:
            tree["dtype"] = _word(values.dtype)
        if not values.is_contiguous():
            tree["strides"] = list(values.stride())
        return tree


def restored(tree: Tree, arrays: Mapping[str, Values]) -> Any:
    """The value that was packed into a tree.

    Raises:
        ValueError: the tree is damaged, or refers to something that does not exist.
    """
    return _Restoring(arrays).value(tree)


@dataclass
class _Restoring:
    arrays: Mapping[str, Values]
    made: dict[str, Tensor] = field(default_factory=dict)

    def value(self, tree: Tree) -> Any:
        match tree:
            case {"float": str(text)}:
                return float(text)
            case {"dtype": str(word)} if "array" not in tree:
                return dtype_of(word)
            case {"array": str(name)}:
                return self._tensor(name, tree)
            case {"mapping": Mapping() as items}:
                return {key: self.value(item) for key, item in items.items()}
            case {"sequence": list(items)}:
                return tuple(self.value(item) for item in items)
            case {"dataclass": str(kind), "fields": Mapping() as content}:
                return _dataclass(kind)(**{key: self.value(item) for key, item in content.items()})
            case None | bool() | int() | float() | str():
                return tree
        raise ValueError(f"{str(tree)[:80]} cannot be read")

    def _tensor(self, name: str, tree: Mapping[str, Any]) -> Tensor:
        if name not in self.arrays:
            raise ValueError(f"there is no array {name!r}")
        if name not in self.made:
            values = torch.from_numpy(np.array(self.arrays[name]))
            if "dtype" in tree:
                values = values.to(dtype_of(tree["dtype"]))
            if "strides" in tree:
                values = with_strides(values, tree["strides"])
            self.made[name] = values
        return self.made[name]


def dtype_of(word: str) -> torch.dtype:
    """The dtype of that name.

    Raises:
        ValueError: it is none of the allowed dtypes.
    """
    if word not in _DTYPES:
        raise ValueError(f"{word!r} is none of the dtypes {', '.join(_DTYPES)}")
    dtype: torch.dtype = getattr(torch, word)
    return dtype


def with_strides(values: Tensor, strides: Sequence[int]) -> Tensor:
    """A tensor of the same numbers with another memory layout.

    Raises:
        ValueError: a stride is negative, there is not one per axis, or the array would span too much memory.
    """
    if not all(isinstance(stride, int) and 0 <= stride <= _WIDEST for stride in strides):
        raise ValueError(f"strides are whole numbers from 0 to {_WIDEST:,}, not {str(list(strides))[:80]}")
    span = 1 + sum((n - 1) * stride for n, stride in zip(values.shape, strides, strict=True)) if values.numel() else 0
    if span > _WIDEST:
        raise ValueError(f"strides {list(strides)} of shape {tuple(values.shape)} take more than {_WIDEST:,} numbers")
    laid = torch.zeros(span, dtype=values.dtype).as_strided(values.shape, tuple(strides))
    return laid.copy_(values) if values.numel() else values


def _dataclass(kind: str) -> Any:
    module, _, name = kind.partition(":")
    if module.split(".")[0] != "cemverify":
        raise ValueError(f"{kind} does not belong to cemverify")
    try:
        target: Any = importlib.import_module(module)
        for part in name.split("."):
            target = getattr(target, part)
    except (ImportError, AttributeError):
        raise ValueError(f"this version of cemverify has no {kind}") from None
    if not (is_dataclass(target) and isinstance(target, type)):
        raise ValueError(f"{kind} is no dataclass")
    return target


def _word(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
