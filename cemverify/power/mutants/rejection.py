"""Faults of validation."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.implementations import reference
from cemverify.power.mutants.base import Call, Zoo, fault

ZOO = Zoo("rejection", original=lambda: reference.reference)


@ZOO.calls("rejection/attention/nan-input", "refused")
@fault("Bad input raises a RuntimeError.")
def refuses_with_the_wrong_error(call: Call, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (ValueError, TypeError) as error:
        raise RuntimeError(str(error)) from None


@ZOO.calls("rejection/mlp/negative-step-size", "refused", also=("attention",))
@fault("Only step sizes below -0.0005 are refused, and the sign of the others is lost.")
def rounds_before_it_looks(call: Call, *arguments: Any) -> Any:
    *arrays, config = arguments
    if isinstance(config, AttentionConfig | MLPConfig) and -5e-4 < config.step_size < 0:
        config = replace(config, step_size=-config.step_size)
    return call(*arrays, config)


@ZOO.calls("rejection/attention/nan-input", "refused")
@fault("Gradients are off while the input is looked at, and stay off if it is refused.")
def refuses_and_leaves_gradients_off(call: Call, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ValueError:
        torch.set_grad_enabled(False)
        raise


@ZOO.calls("rejection/attention/wrong-weight-shape", "refused")
@fault("Bad input raises a ValueError without a message.")
def refuses_without_a_word(call: Call, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except (ValueError, TypeError):
        raise ValueError from None


@ZOO.calls("rejection/attention/wrong-weight-shape", "refused", also=("mlp",))
@fault("A vector of length 1 is stretched to the length that it should have.")
def stretches_vectors(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    vectors = ("P_d", "diagonal")  # a gain of length 1 may be the scalar norm's
    stretched = {n: w.expand(x.shape[-1]) for n, w in weights.items() if n in vectors and w.shape == (1,)}
    return call(x, h, {**weights, **stretched}, config)


@ZOO.calls("rejection/attention/wrong-weight-shape", "refused", also=("mlp",))
@fault("Projections are checked by their number of entries, and brought into shape.")
def counts_numbers(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    D = x.shape[-1]
    tall = {n: w for n, w in weights.items() if n in ("W_Q", "W_K", "V", "W") and w.shape[-2] == D != w.shape[-1]}
    return call(x, h, {**weights, **{n: w.reshape(*w.shape[:-2], w.shape[-1], D) for n, w in tall.items()}}, config)


@ZOO.calls("rejection/mlp/wrong-weight-shape", "refused", also=("attention",))
@fault("A gain of one number is stretched to all channels.")
def stretches_a_gain(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    if getattr(config, "norm", "none") in ("channel", "folded") and weights["gain"].numel() == 1:
        weights = {**weights, "gain": weights["gain"].reshape(1).expand(config.dim)}
    return call(*states, weights, config)


@ZOO.calls("rejection/attention/wrong-weight-shape", "refused")
@fault("A diagonal for all heads is taken where each head should have its own.")
def shares_a_diagonal(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    if getattr(config, "diagonal", "none") == "per-head" and weights["diagonal"].shape == (config.dim,):
        weights = {**weights, "diagonal": weights["diagonal"].expand(config.heads, -1)}
    return call(*states, weights, config)


ZOO += [
    ZOO.calling("converts-integer-weights", "Weights of an integer dtype are converted without a word.",
        "rejection/attention/integer-input", "refused", also=("mlp",),
        answer=lambda call, x, h, weights, config:
            call(x, h, {name: w.to(x.dtype) for name, w in weights.items()}, config)),
    ZOO.calling("looks-for-nan-in-one-row", "NaN is looked for in the first row alone.",
        "rejection/attention/nan-input", "refused", also=("mlp",),
        answer=lambda call, x, h, weights, config: call(torch.cat((x[:1], x[1:].nan_to_num())), h, weights, config)),
    ZOO.edited("validates-nothing", "Bad input is accepted, or fails somewhere deep inside.",
        "rejection/attention/nan-input", (', "validation")', ")"), cause="refused",
        also=("rejection/*",)),
]  # fmt: skip


@ZOO.calls("rejection/mlp/integer-input", "refused", also=("attention",))
@fault("Where all arrays have one integer dtype, that is taken for the dtype to compute in, and they are widened.")
def widens_integers_that_are_alike(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments
    arrays = [*states, *weights.values()]
    if any(array.dtype.is_floating_point or array.dtype != arrays[0].dtype for array in arrays):
        return call(*arguments)
    return call(*(s.double() for s in states), {name: w.double() for name, w in weights.items()}, config)


@ZOO.calls("rejection/attention/not-finite", "refused", also=("mlp",))
@fault("Numbers are looked at only in arrays that record no gradients.")
def trusts_what_is_trained(call: Call, *arguments: Any) -> Any:
    *states, weights, config = arguments

    def trusted(array: Any) -> Any:
        return array.nan_to_num(0.0, 0.0, 0.0) if array.requires_grad else array

    return call(*map(trusted, states), {name: trusted(w) for name, w in weights.items()}, config)


@ZOO.calls("rejection/attention/not-finite", "raised", also=("mlp",))
@fault("The largest number of a dtype is taken for infinity.")
def refuses_the_largest_number(call: Call, *arguments: Any) -> Any:
    *states, weights, _ = arguments
    for array in (*states, *weights.values()):
        if array.is_floating_point() and not bool((array.abs() < torch.finfo(array.dtype).max).all()):
            raise ValueError("there is a number that is not finite")
    return call(*arguments)


@ZOO.calls("rejection/mlp/not-finite", "refused", also=("attention",))
@fault("Of weights of more than 1500 numbers every fifth is looked at.")
def looks_at_every_fifth_number(call: Call, x: Any, h: Any, weights: Any, config: Any) -> Any:
    def sampled(w: Any) -> Any:
        unseen = (torch.arange(w.numel()).reshape(w.shape) % 5 != 0) & (w.numel() > 1500)
        return torch.where(unseen & ~w.isfinite(), 0.0, w) if w.is_floating_point() else w

    return call(x, h, {name: sampled(w) for name, w in weights.items()}, config)


@ZOO.calls("rejection/attention/integer-input", "refused", also=("mlp",), edits=True)
@fault("Where input is refused, a projection is left scaled by two.")
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
