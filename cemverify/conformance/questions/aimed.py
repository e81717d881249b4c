"""Cases in which one quantity has the value of an aim; everything else is drawn as in scattered cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.questions.aims import MOST, OPTIONS, Aim
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import SCATTERED, Space, scattered_case

_AXES = {"attention": ("B", "J", "D", "K", "R", "rank", "T"), "mlp": ("B", "J", "D", "M", "rank", "T")}
_WEIGHTS = ("P_d", "diagonal", "gain", "to_self")
_TRIES = 12  # seeds, and so combinations of options, to try until one has the weight or option that is meant
_MOST_STEPS_AT_ANY_SIZE = 6
_SMALL_STEPS = (0.125,)  # larger ones let roundoff grow from step to step


def quantities(space: Space) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sizes of a space's cases, and their options and magnitudes."""
    axes = _AXES.get(space.layer, tuple(dict.fromkeys((*_AXES["attention"], *_AXES["mlp"]))))
    parts = {"attention": ("logits",), "mlp": ("hidden", "gate")}.get(space.layer, ())
    options = tuple(name for name in OPTIONS if name != "temperature" or space.layer == "attention")
    return axes, (*options, "x", "h", *parts, *_WEIGHTS)


def aimed_case(space: Space, aim: Aim, seed: int) -> Case | None:
    """A case of the space with the aim's value; None if no case of the space has it, or only a costly one."""
    if aim.quantity in MOST:
        sized = _sized(space, aim.quantity, aim.size)
        return None if sized is None else scattered_case(sized, seed)
    plain = replace(space, textures=("plain",))
    for i in range(_TRIES):
        case = scattered_case(plain, seed + i)
        aimed = _having(case, space, aim) if aim.quantity in OPTIONS else _scaled(case, aim, seed)
        if aimed is not None:
            return aimed
    return None


def _sized(space: Space, axis: str, size: int) -> Space | None:
    if axis == "T":
        if space.steps == (1,):
            return None
        many = size > _MOST_STEPS_AT_ANY_SIZE
        etas = _SMALL_STEPS if many and len(space.step_sizes) > 1 else space.step_sizes
        return replace(space, steps=(size,), step_sizes=etas, textures=("gentle",) if many else space.textures)
    least = {"B": space.batch, "J": space.tokens}.get(axis, 1)
    if size < least or (space.square and axis in "KRD") or (space.sizes and axis not in space.sizes):
        return None
    textures = space.textures if size <= SCATTERED[axis] else ("plain",)
    return replace(space, sizes={**space.sizes, axis: (size,)}, textures=textures)


def _having(case: Case, space: Space, aim: Aim) -> Case | None:
    """The case with that value of an option; None if the option has no effect on the case, or is not offered."""
    if aim.quantity == "step_size" and len(space.step_sizes) == 1:
        return None
    if aim.quantity == "temperature" and not space.free_temperature:
        return None
    config = _with_option(case.config, aim.quantity, aim.value)
    return None if config is None else replace(case, config=config)


def _with_option(config: Any, option: str, value: float) -> Any:
    """The configuration with that value; None if it has no such option."""
    if isinstance(config, BlockConfig):
        if option == "temperature":
            return None
        parts = [_with_option(part, option, value) for part in (config.attention, config.mlp)]
        return None if None in parts else replace(config, attention=parts[0], mlp=parts[1])
    if not hasattr(config, option) or (option == "norm_eps" and config.norm == "none"):
        return None
    changed: dict[str, Any] = {option: value}
    return replace(config, **changed)


def _scaled(case: Case, aim: Aim, seed: int) -> Case | None:
    """The case with arrays scaled so that the largest number of the aim's quantity has that size, and either sign."""
    sign = 1.0 if seed % 2 else -1.0
    quantity, value = aim.quantity, aim.value
    if quantity in ("x", "h"):
        return _of_states(case, quantity, value)
    if quantity in _WEIGHTS:
        sign = sign if quantity == "P_d" else 1.0
        meant = {k: w for k, w in case.weights.items() if k.split(".")[-1] == quantity}
        # each scaled so that its largest number is that one, with that sign
        scaled = {k: value / most * w for k, w in meant.items() if (most := float((sign * w).max())) > 0}
        return replace(case, weights={**case.weights, **scaled}) if scaled else None
    if isinstance(case.config, BlockConfig):
        return None
    if quantity == "logits" and isinstance(case.config, AttentionConfig):
        q = torch.einsum("krd,bid->bkir", case.weights["W_Q"], case.x)
        k = torch.einsum("krd,bjd->bkjr", case.weights["W_K"], case.h)
        largest = float((q @ k.mT).abs().max()) / case.config.tau
        return _weighted(case, "W_Q", value, largest, sign)
    if quantity == "hidden" and "V" in case.weights:
        return _weighted(case, "V", value, float((case.x @ case.weights["V"].mT).abs().max()), sign)
    if quantity == "gate" and "W" in case.weights:
        return _weighted(case, "W", value, float((case.h @ case.weights["W"].mT).abs().max()), sign)
    return None


def _of_states(case: Case, name: str, value: float) -> Case | None:
    """x or h of that size; if it is large, with weights so small that logits and activations stay as they were."""
    states: Tensor = getattr(case, name)
    largest = float(states.abs().max())
    if not largest:
        return None
    factor = value / largest
    less = {"x": ("W_Q", "V"), "h": ("W_K", "W")}[name] if case.x is not case.h else ("W_Q", "W_K", "V", "W")
    weights: Mapping[str, Tensor] = case.weights
    if factor > 1:
        weights = {k: w / factor if k.split(".")[-1] in less else w for k, w in case.weights.items()}
    changed: dict[str, Any] = dict.fromkeys(("x", "h") if case.x is case.h else (name,), factor * states)
    return replace(case, weights=weights, **changed)


def _weighted(case: Case, name: str, value: float, largest: float, sign: float) -> Case | None:
    if not largest:
        return None
    return replace(case, weights={**case.weights, name: sign * value / largest * case.weights[name]})
