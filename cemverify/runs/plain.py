"""Specifications as plain JSON values, and back.

A frozen dataclass becomes an object that names its class under "is"; type annotations tell how to read it back.
A field added to a class whose specifications are already stored is marked, `field(..., metadata={"added":
True})`, and is left out if it has its default, so that the keys of those specifications do not change.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints


def plain(value: Any, where: str = "specification") -> Any:
    """A value as plain JSON; equal values give equal results.

    Args:
        where: the name of the value in errors.

    Raises:
        TypeError: it holds something other than dataclasses, tuples, lists, mappings from text, text, finite numbers,
            truth values and None.
    """
    if value is None or isinstance(value, bool | str) or (isinstance(value, int) and type(value) is int):
        return value
    if type(value) is float:
        if not math.isfinite(value):
            raise TypeError(f"{where} is {value}, which JSON has no word for; use None")
        return value
    if is_dataclass(value) and not isinstance(value, type):
        content = {}
        for f in fields(value):
            item, hint = getattr(value, f.name), _hints(type(value))[f.name]
            if f.init and not (f.metadata.get("added") and item == f.default):
                declared = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
                # 1 where a float is declared becomes 1.0, so that both have one key
                item = float(item) if type(item) is int and float in declared and int not in declared else item
                content[f.name] = plain(item, f"{where}.{f.name}")
        return {"is": type(value).__name__, **content}
    if isinstance(value, Mapping):
        if bad := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"{where} has the key {bad[0]!r}; JSON keys are text")
        return {key: plain(item, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, f"{where}[{i}]") for i, item in enumerate(value)]
    raise TypeError(f"{where} is of type {type(value).__name__}; only plain values and dataclasses can be stored")


def restore(hint: Any, value: Any) -> Any:
    """The inverse of `plain`, and of `dataclasses.asdict`, for a value declared as `hint`.

    An object without "is" is of the class that the annotation declares.

    Raises:
        TypeError: the value is not what the annotation declares.
    """
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping) or value.get("is", hint.__name__) != hint.__name__:
            raise TypeError(f"a {hint.__name__} was expected, not {_short(value)}")
        hints = _hints(hint)
        if unknown := value.keys() - {"is"} - {f.name for f in fields(hint) if f.init}:
            raise TypeError(f"{hint.__name__} has no field {', '.join(sorted(unknown))}")
        return hint(**{name: restore(hints[name], item) for name, item in value.items() if name != "is"})
    origin, arguments = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return _restore_union(arguments, value)
    if isinstance(value, Mapping):
        return {key: restore(arguments[1] if arguments else Any, item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        items = list(arguments[:1] or (Any,)) * len(value)
        if (origin or hint) is tuple and arguments and arguments[1:] != (Ellipsis,):
            items = list(arguments)
        restored = [restore(item_hint, item) for item_hint, item in zip(items, value, strict=True)]
        return restored if (origin or hint) is list else tuple(restored)
    return value


def dumps(value: Any) -> str:
    """The only way to write a plain value: sorted keys, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(value: Any) -> str:
    """The SHA-256 of a plain value."""
    return hashlib.sha256(dumps(value).encode()).hexdigest()


@cache
def _hints(owner: type) -> dict[str, Any]:
    return get_type_hints(owner)


def _restore_union(members: Sequence[Any], value: Any) -> Any:
    if value is None and NoneType in members:
        return None
    classes = {m.__name__: m for m in members if is_dataclass(m) and isinstance(m, type)}
    if isinstance(value, Mapping) and ("is" in value or len(classes) == 1):
        named = value.get("is", next(iter(classes), ""))
        if named not in classes:
            raise TypeError(f"{named} is none of {', '.join(getattr(m, '__name__', str(m)) for m in members)}")
        return restore(classes[named], value)
    containers = [m for m in members if get_args(m) or m in (list, tuple, dict)]
    return restore(containers[0], value) if isinstance(value, list | tuple | Mapping) and containers else value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
