"""Smaller cases: shrinks again what Hypothesis found, first in size, then in digits.

Hypothesis shrinks choices, and choosing another size changes every choice after it. Here whole tokens, features,
heads and hidden units are removed from a failing case, and all other numbers stay the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.questions.cases import Case, Config
from cemverify.conformance.questions.spaces import Space

_LONG = 16  # axes of this length are first reduced by halves
_FEW = (1, 2, 3)  # significant digits to which numbers are cut
_NUMBERS = 24  # arrays with at most this many numbers are simplified one by one
Key = TypeVar("Key")

# one letter per axis: model D, heads K, head R, hidden M, rank r; with one array per head, K comes first
_AXES = {"W_Q": "KRD", "W_K": "KRD", "to_self": "K", "to_others": "K", "V": "MD", "W": "MD",
         "diagonal": "D", "P_d": "D", "P_U": "Dr", "P_V": "Dr", "gain": "D"}  # fmt: skip


def smaller(case: Case, space: Space) -> Iterator[Case]:
    """Slightly smaller cases of the space, the largest reductions first."""
    in_a_block = isinstance(case.config, BlockConfig)
    yield from _without(case, "BJ" if in_a_block else "BJM" if space.square else "BJDKRMr", space)
    if isinstance(case.config, AttentionConfig | MLPConfig):
        yield from (case.having(steps=fewer) for fewer in sorted(space.steps) if fewer < case.layer_config.steps)
    tied = not space.apart  # if x and h are one array, they stay one
    states = {"h": case.h} if tied else {"x": case.x, "h": case.h}
    for name, simpler in simpler_arrays({**states, **case.weights}):
        yield _with(case, name, simpler, tied)


def _without(case: Case, axes: str, space: Space) -> Iterator[Case]:
    sizes = _sizes(case)
    least = {"B": space.batch, "J": space.tokens}
    for axis in axes:
        size = sizes.get(axis, 1)
        for index in _parts(size):
            if size - len(index) >= least.get(axis, 1):
                config = _config_without(case.config, axis, len(index), space)
                if config is not None:
                    weights = {
                        name: _drop(w, _axes_of(name.split(".")[-1], w), axis, index)
                        for name, w in case.weights.items()
                    }
                    smaller_case = Case(config, case.x, case.h, weights)
                    yield smaller_case.with_states(lambda states: _drop(states, "BJD", axis, index))  # noqa: B023


def _parts(size: int) -> Iterator[range]:
    """What may be removed from an axis: from a long one its last half, quarter and so on; then every single index."""
    part = size // 2
    while part >= _LONG // 2:
        yield range(size - part, size)
        part //= 2
    yield from (range(index, index + 1) for index in range(size))


def _sizes(case: Case) -> dict[str, int]:
    sizes = {"B": case.x.shape[0], "J": case.x.shape[1]}
    if isinstance(case.config, AttentionConfig):
        sizes |= {"D": case.config.dim, "K": case.config.heads, "R": case.config.R}
    elif isinstance(case.config, MLPConfig):
        sizes |= {"D": case.config.dim, "M": case.config.hidden}
    if isinstance(case.config, AttentionConfig | MLPConfig) and "P_U" in case.weights:
        sizes["r"] = case.config.preconditioner.rank
    return sizes


def _config_without(config: Config, axis: str, less: int, space: Space) -> Config | None:
    """The config with that much less along the axis, or None if the space has no such case."""
    if axis in "BJ":
        return config
    assert not isinstance(config, BlockConfig)
    if axis == "r":
        kind = config.preconditioner
        return replace(config, preconditioner=replace(kind, rank=kind.rank - less))
    if axis == "D":
        return replace(config, dim=config.dim - less)
    if isinstance(config, MLPConfig):
        return replace(config, hidden=config.hidden - less)
    if axis == "K":
        return replace(config, heads=config.heads - less)
    if config.position == "rotary":
        return None  # its features come in pairs
    tau = config.temperature if space.free_temperature else math.sqrt(config.R - less)
    return replace(config, head_dim=config.R - less, temperature=tau)


def _axes_of(name: str, array: Tensor) -> str:
    if name == "gain" and array.shape[0] == 1:
        return "1"  # a scalar gain, or a single dimension, which is never removed
    axes = _AXES[name]
    return axes if array.dim() == len(axes) else f"K{axes}"


def _drop(array: Tensor, axes: str, axis: str, index: range) -> Tensor:
    if axis not in axes:
        return array
    dim = axes.index(axis)
    indices = [i for i in range(array.shape[dim]) if i not in index]
    return array.index_select(dim, torch.tensor(indices, dtype=torch.int64))


def simpler_arrays(named: Mapping[Key, Tensor]) -> Iterator[tuple[Key, Tensor]]:
    """Arrays of zeros, of integers, of few digits, then changed number by number, each with its name.

    Every form is shorter to write than the one before, so this terminates.
    """
    for name, array in named.items():
        for simpler in (torch.zeros_like(array), array.round(), *(digits(array, n) for n in _FEW)):
            if not torch.equal(simpler, array):
                yield name, simpler
    for name, array in named.items():
        for i in array.flatten().nonzero().flatten().tolist()[:_NUMBERS]:
            value = array.flatten()[i]
            shorter = (torch.zeros(()), value.sign(), value.round(), *(digits(value, n) for n in _FEW))
            for candidate in dict.fromkeys(map(float, shorter)):
                if written_length(candidate) < written_length(float(value)):
                    changed = array.clone()  # a clone keeps strides, and so may have no flat view
                    changed[np.unravel_index(i, array.shape)] = candidate  # torch's would first import its compiler
                    yield name, changed


def digits(values: Tensor, n: int) -> Tensor:
    """The values with n significant digits each."""
    cut = [float(f"{v:.{n}g}") for v in values.flatten().tolist()]
    return torch.tensor(cut, dtype=values.dtype).reshape(values.shape)


def written_length(value: float) -> int:
    """The length of its digits; 0 for zero."""
    return len(f"{abs(value):.17g}".rstrip("0")) if value else 0


def _with(case: Case, name: str, array: Tensor, tied: bool) -> Case:
    if name in ("x", "h"):
        x = array if tied or name == "x" else case.x
        return replace(case, x=x, h=array if name == "h" else case.h)
    return replace(case, weights={**case.weights, name: array})
