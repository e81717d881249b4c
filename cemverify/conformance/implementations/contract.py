"""The contract: what an implementation provides, and how it is loaded.

There are two kinds. An implementation of CEM is a set of functions that take hidden states, named weights and a
configuration, and return a layer's output. An energy layer is any layer with an update and, if it has one, an energy;
it needs no canonical weights.

An implementation declares which features it does not offer. Everything that it does not declare is tested. Declared
absences are counted and printed, never skipped silently.

The result of a call depends on its arguments alone. The call reads the current values of its arrays, whatever their
memory layout (x and h may be the same array, an array may be a view into a larger one, weights come in any order).
Its result is not changed by later calls. It leaves arrays, random state and the settings of the process unchanged.
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any, Literal

import torch

from cemverify.conformance.implementations import naming
from cemverify.conformance.implementations.arrays import ARRAY_KINDS, TORCH, ArrayName
from cemverify.conformance.implementations.energy_layers import EnergyLayer, energy_layer
from cemverify.conformance.implementations.faults import words
from cemverify.conformance.implementations.features import (
    FEATURES,
    FUNCTIONS,
    PREFILL,
    declared_absent,
    unclaimed,
)
from cemverify.conformance.implementations.naming import LoadError


@dataclass(frozen=True)
class Implementation:
    """An implementation of CEM layers.

    Attributes:
        functions: those of FUNCTIONS that it has, and prefill.
        not_offered: the features that it declares absent, each with a reason.
        arrays: the kind of arrays that it takes and returns.
    """

    functions: Mapping[str, Callable[..., Any]]
    not_offered: Mapping[str, str] = field(default_factory=dict)
    arrays: ArrayName = "torch"


Subject = Implementation | EnergyLayer
Kind = Literal["CEM implementation", "energy layer"]


def kind_of(subject: Subject) -> Kind:
    """Which kind of implementation it is, as properties name it."""
    return "energy layer" if isinstance(subject, EnergyLayer) else "CEM implementation"


def implementation(
    *,
    attention: Callable[..., Any] | None = None,
    mlp: Callable[..., Any] | None = None,
    block: Callable[..., Any] | None = None,
    decode: Callable[..., Any] | None = None,
    attention_energy: Callable[..., Any] | None = None,
    mlp_energy: Callable[..., Any] | None = None,
    prefill: Callable[..., Any] | None = None,
    arrays: ArrayName = "torch",
    not_offered: Iterable[str] = (),
    offers: Iterable[str] = (),
) -> Implementation:
    """Makes an implementation of CEM layers from plain functions, for `cemverify check`.

    The layer functions take `(x, h, weights, config)`; `block` and `decode` take `(h, weights, config)`, and
    `prefill(h, cache, weights, config)` returns x and the cache. x and h have shape (B, J, D). `weights` maps names
    to arrays; depending on the configuration it holds some of

        W_Q, W_K (K, R, D)     diagonal (D,) or (K, D)        to_self, to_others (K,)
        V, W (M, D)            P_d (D,) or (K, D)             P_U, P_V (D, r) or (K, D, r)
        gain (1,) or (D,)

    `config` is an `AttentionConfig`, `MLPConfig` or `BlockConfig` of the reference. Attention is always causal, and
    `config.temperature` is always a number. The weights of a block are named "attention.W_Q", "mlp.V" and so on. A
    function that is left out counts as not offered, but `decode` is made from `prefill` if that is given.

    Args:
        arrays: the kind of arrays that the functions take and return: "torch", "numpy" or "jax".
        not_offered: features that they do not have, such as "diagonal" or "norm:channel"; `cemverify list --features`
            explains them. Every feature that is not named here is tested.
        offers: features that are tested only on request: "dtype:float16".

    Raises:
        ValueError: no function is given, or a feature or kind of array is unknown.
    """
    names = (*FUNCTIONS, PREFILL)
    given = zip(names, (attention, mlp, block, decode, attention_energy, mlp_energy, prefill), strict=True)
    functions = {name: function for name, function in given if function is not None}
    if strange := [name for name, function in functions.items() if not callable(function)]:
        raise ValueError(f"{', '.join(strange)} must be a function")
    if not functions:
        raise ValueError(f"an implementation needs at least one of: {', '.join(names)}")
    absent = _declared(not_offered, arrays)
    if prefill is not None and decode is None:
        functions["decode"] = _token_by_token(prefill, arrays)
    missing = {name: f"it has no {name} function" for name in names if name not in functions}
    return Implementation(functions, missing | unclaimed(offers) | absent, arrays)


def _token_by_token(prefill: Callable[..., Any], arrays: ArrayName) -> Callable[..., Any]:
    """`decode` of an implementation that has only `prefill`."""

    @functools.wraps(prefill)  # for its file and line
    def decode(h: Any, weights: Any, config: Any) -> Any:
        cache, rows = None, []
        for i in range(h.shape[1]):
            x, cache = prefill(h[:, i : i + 1], cache, weights, config)
            rows.append(x)
        return ARRAY_KINDS[arrays].joined(rows, 1)

    return decode


def load(name: str) -> Subject:
    """Loads an implementation by name: `module:attribute`, `file.py:attribute` or an entry point (see `naming`).

    Raises:
        LoadError: it cannot be imported, has no such attribute, or is not an implementation.
    """
    target = attribute(name)
    try:
        return as_subject(target, name)
    except (LoadError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise LoadError(f"reading {name!r} failed: {words(error)}") from error


def attribute(name: str) -> Any:
    """The object of this name (see `naming`).

    Raises:
        LoadError: it cannot be imported, or has no such attribute.
    """
    module_name, path = naming.parts(name)
    around = module(module_name, name)
    value: Any = around
    try:
        for part in path.split("."):
            if not hasattr(value, part):
                raise LoadError(naming.no_attribute(module_name, path, *_defined(around)))
            value = getattr(value, part)
    except (LoadError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise LoadError(f"reading {path!r} of {module_name!r} failed: {words(error)}") from error
    return value


def module(name: str, wanted: str | None = None) -> ModuleType:
    """The module of a dotted name.

    Args:
        wanted: what it is imported for, if that is not the module itself.

    Raises:
        LoadError: it cannot be imported.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and (name == error.name or name.startswith(f"{error.name}.")):
            raise LoadError(naming.no_module(name, wanted or name)) from error
        raise LoadError(f"importing {name!r} failed: {words(error)}") from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # SystemExit too
        raise LoadError(f"importing {name!r} failed: {words(error)}") from error


def _defined(module: ModuleType) -> tuple[list[str], list[str]]:
    """The names of the implementations in a module, and of whatever else it defines."""
    declared = [name for name, value in vars(module).items() if isinstance(value, Subject)]
    public = {name: v for name, v in vars(module).items() if not (name.startswith("_") or isinstance(v, ModuleType))}
    own = [name for name, v in public.items() if getattr(v, "__module__", module.__name__) == module.__name__]
    return declared, [name for name in own if name not in declared]


def as_subject(target: Any, name: str = "the object") -> Subject:
    """Returns an implementation as it is, or makes one of an object (a module, an instance) with these attributes.

    Raises:
        LoadError: the object has none of the functions of either kind.
    """
    if isinstance(target, Implementation | EnergyLayer):
        return target
    if isinstance(target, type):
        raise LoadError(f"{name} is a class: give an instance of it")
    functions = {key: getattr(target, key) for key in (*FUNCTIONS, PREFILL) if callable(getattr(target, key, None))}
    common: dict[str, Any] = {
        "arrays": getattr(target, "arrays", "torch"),
        "not_offered": getattr(target, "not_offered", ()),
        "offers": getattr(target, "offers", ()),
    }
    try:
        if functions:
            return implementation(**functions, **common)
        if callable(getattr(target, "update", None)) and (hasattr(target, "dim") or hasattr(target, "state")):
            declared = inspect.signature(energy_layer).parameters.keys() - common.keys() - {"parameters"}
            declaration = {key: getattr(target, key) for key in declared if hasattr(target, key)}
            if isinstance(target, torch.nn.Module):
                declaration["parameters"] = target
            return energy_layer(**declaration, **common)
    except (TypeError, ValueError) as error:
        raise LoadError(f"{name} is not a valid implementation: {error}") from error
    if isinstance(target, torch.nn.Module):
        how = "cemverify.implementation_from_modules(...), or cemverify.energy_layer(update=..., parameters=module)"
    elif inspect.isroutine(target):
        how = "cemverify.implementation(attention=...), or cemverify.energy_layer(update=...)"
    else:
        how = "cemverify.implementation(...) or cemverify.energy_layer(...)"
    kind = type(target).__name__
    article = "an" if kind[0].lower() in "aeiou" else "a"
    raise LoadError(f"{name} is {article} {kind}, not an implementation: make one with {how}")


def _declared(not_offered: Iterable[str], arrays: str) -> dict[str, str]:
    if arrays not in list(ARRAY_KINDS):  # a list, because `arrays` need not be hashable
        raise ValueError(f"arrays must be 'torch', 'numpy' or 'jax', not {arrays!r}")
    kind = ARRAY_KINDS[arrays]
    kind.require()
    reasons = {**declared_absent(not_offered, FEATURES), **kind.lacks}
    if kind is not TORCH:
        reasons.setdefault("cuda", "only torch arrays are put on a device")
    return reasons
