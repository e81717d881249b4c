"""Faults of validation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import Implementation
from cemverify.conformance.implementations.plain import Plain
from cemverify.power.mutants.base import Call, Function, Zoo, around

ZOO = Zoo("rejection")


def _careful() -> Implementation:
    return reference.reference


@ZOO.killed_by(
    "Bad input is accepted, or fails somewhere deep inside.",
    "rejection/attention/nan-input",
    "bad input is refused*",
    also=("rejection/*",),
)
class ValidatesNothing(Plain):
    not_offered = ("attention_energy", "mlp_energy")


@ZOO.calls(
    "Bad input raises a RuntimeError.",
    "rejection/attention/nan-input",
    "bad input is refused*not a ValueError or TypeError",
    original=_careful,
)
def refuses_with_the_wrong_error(call: Call, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(error)) from None


@ZOO.calls(
    "Only step sizes below -0.0005 are refused, and the sign of the others is lost.",
    "rejection/mlp/negative-step-size",
    "bad input is refused*step_size = -0.0001*accepted it",
    also=("rejection/attention/negative-step-size",),
    original=_careful,
)
def rounds_before_it_looks(call: Call, *arguments: Any) -> Any:
    *arrays, config = arguments
    if isinstance(config, AttentionConfig | MLPConfig) and -5e-4 < config.step_size < 0:
        config = replace(config, step_size=-config.step_size)
    return call(*arrays, config)


@ZOO.calls(
    "Gradients are off while the input is looked at, and stay off if it is refused.",
    "rejection/attention/nan-input",
    "bad input is refused*gradient mode*",
    original=_careful,
)
def refuses_and_leaves_gradients_off(call: Call, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ValueError:
        torch.set_grad_enabled(False)
        raise


@ZOO.calls(
    "Bad input raises a ValueError without a message.",
    "rejection/attention/wrong-weight-shape",
    "bad input is refused*without a message",
    original=_careful,
)
def refuses_without_a_word(call: Call, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (ValueError, TypeError):
        raise ValueError from None


def _corrected(implementation: Implementation, correct: Callable[[Any, Any], tuple[Any, Any]]) -> Implementation:
    """One that sees x and the weights corrected, and so refuses less than it should."""

    def change(_: str, function: Function) -> Function:
        def answer(x: Any, h: Any, weights: Any, config: Any) -> Any:
            x, weights = correct(x, weights)
            return function(x, h, weights, config)

        return answer

    return around(implementation, change)


@ZOO.wraps(
    "Weights of an integer dtype are converted without a word.",
    "rejection/attention/integer-input",
    "bad input is refused*accepted it",
    also=("rejection/mlp/integer-input",),
    original=_careful,
)
def converts_integer_weights(implementation: Implementation) -> Implementation:
    def correct(x: Any, weights: Any) -> tuple[Any, Any]:
        return x, {name: w.to(x.dtype) for name, w in weights.items()}

    return _corrected(implementation, correct)


@ZOO.wraps(
    "A vector of length 1 is stretched to the length that it should have.",
    "rejection/attention/wrong-weight-shape",
    "bad input is refused*accepted it",
    also=("rejection/mlp/wrong-weight-shape",),
    original=_careful,
)
def stretches_vectors(implementation: Implementation) -> Implementation:
    vectors = ("P_d", "diagonal")  # a gain of length 1 may be the scalar norm's

    def correct(x: Any, weights: Any) -> tuple[Any, Any]:
        D = x.shape[-1]
        return x, {n: w.expand(D) if n in vectors and w.shape == (1,) else w for n, w in weights.items()}

    return _corrected(implementation, correct)


@ZOO.wraps(
    "Projections are checked by their number of entries, and brought into shape.",
    "rejection/attention/wrong-weight-shape",
    "bad input is refused*transposed*accepted it",
    also=("rejection/mlp/wrong-weight-shape",),
    original=_careful,
)
def counts_numbers(implementation: Implementation) -> Implementation:
    def correct(x: Any, weights: Any) -> tuple[Any, Any]:
        D = x.shape[-1]
        tall = {n: w for n, w in weights.items() if n in ("W_Q", "W_K", "V", "W") and w.shape[-2] == D != w.shape[-1]}
        return x, {**weights, **{name: w.reshape(*w.shape[:-2], w.shape[-1], D) for name, w in tall.items()}}

    return _corrected(implementation, correct)


@ZOO.wraps(
    "NaN is looked for in the first row alone.",
    "rejection/attention/nan-input",
    "bad input is refused*accepted it",
    also=("rejection/mlp/nan-input",),
    original=_careful,
)
def looks_for_nan_in_one_row(implementation: Implementation) -> Implementation:
    return _corrected(implementation, lambda x, weights: (torch.cat((x[:1], x[1:].nan_to_num())), weights))


@ZOO.calls(
    "A gain of one number is stretched to all channels.",
    "rejection/mlp/wrong-weight-shape",
    "bad input is refused*gain with*accepted it",
    also=("rejection/attention/wrong-weight-shape",),
    original=_careful,
)
def stretches_a_gain(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    if getattr(config, "norm", "none") in ("channel", "folded") and weights["gain"].numel() == 1:
        weights = {**weights, "gain": weights["gain"].reshape(1).expand(config.dim)}
    return call(*states, weights, config)


@ZOO.calls(
    "A diagonal for all heads is taken where each head should have its own.",
    "rejection/attention/wrong-weight-shape",
    "bad input is refused*diagonal with*accepted it",
    original=_careful,
)
def shares_a_diagonal(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    if getattr(config, "diagonal", "none") == "per-head" and weights["diagonal"].shape == (config.dim,):
        weights = {**weights, "diagonal": weights["diagonal"].expand(config.heads, -1)}
    return call(*states, weights, config)


@ZOO.wraps(
    "Infinity, and NaN in a weight, are replaced without a word.",
    "rejection/attention/not-finite",
    "bad input is refused*accepted it",
    also=("rejection/mlp/not-finite",),
    original=_careful,
)
def replaces_what_is_not_finite(implementation: Implementation) -> Implementation:
    def correct(x: Any, weights: Any) -> tuple[Any, Any]:
        return torch.where(x.isinf(), 0.0, x), {name: w.nan_to_num() for name, w in weights.items()}

    return _corrected(implementation, correct)


@ZOO.calls(
    "Where all arrays have one integer dtype, that is taken for the dtype to compute in, and they are widened.",
    "rejection/mlp/integer-input",
    "bad input is refused*all arrays of*accepted it",
    also=("rejection/attention/integer-input",),
    original=_careful,
)
def widens_integers_that_are_alike(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    arrays = [*states, *weights.values()]
    if any(array.dtype.is_floating_point or array.dtype != arrays[0].dtype for array in arrays):
        return call(*arguments)
    return call(*(s.double() for s in states), {name: w.double() for name, w in weights.items()}, config)


@ZOO.calls(
    "Numbers are looked at only in arrays that record no gradients.",
    "rejection/attention/not-finite",
    "bad input is refused*accepted it",
    also=("rejection/mlp/not-finite",),
    original=_careful,
)
def trusts_what_is_trained(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments

    def trusted(array: Any) -> Any:
        return array.nan_to_num(0.0, 0.0, 0.0) if array.requires_grad else array

    return call(*map(trusted, states), {name: trusted(w) for name, w in weights.items()}, config)


@ZOO.calls(
    "The largest number of a dtype is taken for infinity.",
    "rejection/attention/not-finite",
    "raised",
    also=("rejection/mlp/not-finite",),
    original=_careful,
)
def refuses_the_largest_number(call: Call, *arguments: Any) -> Any:
    *states, weights, _ = arguments
    for array in (*states, *weights.values()):
        if array.is_floating_point() and not bool((array.abs() < torch.finfo(array.dtype).max).all()):
            raise ValueError("there is a number that is not finite")
    return call(*arguments)


@ZOO.calls(
    "Numbers whose squares are infinite are taken for infinite themselves.",
    "rejection/attention/not-finite",
    "raised",
    also=("rejection/mlp/not-finite",),
    original=_careful,
)
def refuses_large_numbers(call: Call, *arguments: Any) -> Any:
    *states, weights, _ = arguments
    for array in (*states, *weights.values()):
        if not array.square().isfinite().all():
            raise ValueError("there is a number that is not finite")
    return call(*arguments)


@ZOO.wraps(
    "Of weights of more than 1500 numbers every fifth is looked at.",
    "rejection/mlp/not-finite",
    "bad input is refused*accepted it",
    also=("rejection/attention/not-finite",),
    original=_careful,
)
def looks_at_every_fifth_number(implementation: Implementation) -> Implementation:
    def sampled(w: Any) -> Any:
        unseen = (torch.arange(w.numel()).reshape(w.shape) % 5 != 0) & (w.numel() > 1500)
        return torch.where(unseen & ~w.isfinite(), 0.0, w) if w.is_floating_point() else w

    return _corrected(implementation, lambda x, weights: (x, {name: sampled(w) for name, w in weights.items()}))


@ZOO.calls(
    "Where input is refused, a projection is left scaled by two.",
    "rejection/attention/integer-input",
    "bad input is refused*it left*W*changed",
    also=("rejection/mlp/integer-input",),
    original=_careful,
    edits=True,
)
def scales_and_refuses(call: Call, *arguments: Any) -> Any:
    weights = arguments[-2]
    try:
        return call(*arguments)
    except (ValueError, TypeError):
        for name, w in weights.items():
            if name in ("W_K", "W") and w.is_floating_point():
                with torch.no_grad():
                    w[...] = 2 * w
        raise
