"""A violation as a few lines of Python to copy."""

from __future__ import annotations

import json
import keyword
import shlex
from collections.abc import Mapping
from typing import Any

_LONGEST = 6000
_LAYERS = {"attention": "AttentionConfig", "mlp": "MLPConfig"}


def commands(implementation: str, entry: Mapping[str, Any]) -> str:
    """The command that asks a property again and saves the smallest case with its own script."""
    words = ["cemverify", "check", implementation, "--properties", entry["id"]]
    words += ["--properties-from", entry["stated_in"]] if "stated_in" in entry else []
    return shlex.join([*words, "--save-counterexamples", "out/found"])


def script(implementation: str, entry: Mapping[str, Any]) -> str | None:
    """A script that asks for the counterexample of a property and fails for as long as the fault is there.

    Returns:
        None where the property compares something else than one update, or the case is too large to paste.
    """
    module, _, attribute = implementation.partition(":")
    found = entry.get("counterexample") or {}
    case, comparison = found.get("case", {}), found.get("comparison", {})
    if not (
        _is_name(module) and _is_name(attribute) and case.get("layer") in _LAYERS and "x" in case and "h" in case
    ):
        return None
    if comparison.get("relation") != "equal" or not str(comparison.get("claim")).startswith("update = -eta"):
        return None
    config = case.get("config", {})
    if not all(_is_name(key) and isinstance(value, int | float | str | bool) for key, value in config.items()):
        return None
    layer, options = case["layer"], ", ".join(f"{key}={value!r}" for key, value in config.items())
    weights = "".join(f"    {name!r}: array({_values(values)}),\n" for name, values in case["weights"].items())
    room = max(float(comparison.get("budget_there") or 0.0), 1e-12)
    text = f"""\
import numpy as np
from cemverify.cem.layers import {_LAYERS[layer]}
from {module} import {attribute} as implementation


def array(values):
    values = np.array(values)
    if implementation.arrays == "numpy":
        return values
    if implementation.arrays == "jax":
        import jax.numpy
        return jax.numpy.asarray(values)
    import torch
    return torch.from_numpy(values)


x = array({_values(case["x"])})
h = array({_values(case["h"])})
weights = {{
{weights}}}
config = {_LAYERS[layer]}({options})
output = implementation.functions[{layer!r}](x, h, weights, config)
update = np.asarray(output) - np.asarray(x)
np.testing.assert_allclose(update, {_values(comparison["expected"])}, atol={room!r})
"""
    return text if len(text) <= _LONGEST else None


def _values(values: Any) -> str:
    return json.dumps(values).replace("null", "np.nan")


def _is_name(words: str) -> bool:
    return all(part.isidentifier() and not keyword.iskeyword(part) for part in words.split("."))
