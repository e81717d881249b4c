"""A diligent suite by hand: every option at three sizes, structure, descent, gradients, what a call may not do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from unittest import SkipTest

import torch
from torch import Tensor
from torch.testing import assert_close

from benchmarks.peers.cases import (
    Case,
    attention_config,
    call,
    case,
    change,
    configurations,
    expected,
    features,
    layer_case,
    slopes,
)
from cemverify import EnergyLayer, Implementation
from cemverify.cem.layers import PreconditionerConfig

SIZES = (
    (1, {"dim": 2, "heads": 1, "head_dim": 2, "hidden": 1}),
    (5, {"dim": 8, "heads": 2, "head_dim": 4, "hidden": 12}),
    (40, {"dim": 30, "heads": 5, "head_dim": 6, "hidden": 17}),
)
UPDATES = ("attention", "mlp", "block", "decode")
LOW_RANK = PreconditionerConfig("low-rank", rank=3, per_head=True)
PRINTED = PreconditionerConfig("low-rank-printed", rank=3)
TOGETHER: tuple[dict[str, Any], ...] = (
    {"diagonal": "shared", "position": "alibi", "norm": "scalar", "steps": 2, "step_size": 0.5},
    {"diagonal": "per-head", "position": "rotary", "norm": "channel", "steps": 3, "temperature": 0.6},
    {"diagonal": "per-head", "position": "self-cross", "norm": "folded", "step_size": 2.0},
    {"preconditioner": LOW_RANK, "position": "rotary", "steps": 2},
    {"preconditioner": PRINTED, "norm": "folded", "diagonal": "shared"},
    {"dim": 7, "heads": 3, "head_dim": 4, "position": "alibi", "diagonal": "per-head"},
)


def asked_of(layer: Implementation, names: tuple[str, ...] = UPDATES, **sizes: Any) -> Iterator[tuple[str, Case]]:
    """Each function with each option by itself, and attention with options mixed."""
    for name in names:
        mixed = [attention_config(**options) for options in TOGETHER] if name == "attention" else []
        known = [c for c in mixed if name in layer.functions and not features(c) & layer.not_offered.keys()]
        for config in (*configurations(layer, name), *known):
            yield name, case(layer, config, **sizes)


def changed(asked: Case, x: Tensor, h: Tensor) -> Case:
    """The same call of other states: of h alone where the layer starts at its memory."""
    return replace(asked, x=h if asked.x is asked.h else x, h=h)


def check_close(answer: Tensor, right: Tensor, name: str, asked: Case, tolerance: float | None = None) -> None:
    message = f"{name}, {asked.config}"
    assert_close(answer, right, rtol=tolerance, atol=tolerance, msg=lambda text: f"{message}: {text}")


def test_every_option_at_three_sizes(layer: Implementation) -> None:
    for tokens, sizes in SIZES:
        for name in layer.functions:
            for seed, config in enumerate(configurations(layer, name, sizes)):
                asked = case(layer, config, batch=3, tokens=tokens, seed=seed)
                check_close(call(layer, name, asked), expected(name, asked), name, asked)


def test_options_together(layer: Implementation) -> None:
    for name, asked in asked_of(layer, ("attention",), seed=1):
        check_close(call(layer, name, asked), expected(name, asked), name, asked)


def test_lower_precisions(layer: Implementation) -> None:
    for dtype, tolerance in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):
        if f"{dtype}".replace("torch.", "dtype:") in layer.not_offered:
            continue
        for name, asked in asked_of(layer):
            lower = asked.to(dtype)
            answer, right = call(layer, name, lower), expected(name, lower.to(torch.float64))
            assert answer.dtype == dtype
            scale = right.abs().max() + 1
            check_close(answer.double() / scale, right / scale, name, asked, tolerance)


def test_shapes_and_dtype(layer: Implementation) -> None:
    for batch, tokens in ((1, 1), (1, 7), (4, 3)):
        for name, asked in asked_of(layer, tuple(layer.functions), batch=batch, tokens=tokens):
            answer = call(layer, name, asked)
            assert answer.shape == ((batch, tokens) if name.endswith("energy") else asked.x.shape)
            assert answer.dtype == torch.float64


def test_causality(layer: Implementation) -> None:
    for name, asked in asked_of(layer, ("attention", "block", "decode", "attention_energy"), tokens=6):
        for i in (1, 3, 5):
            x, h = (torch.cat((a[:, :i], 3 * a[:, i:] + 1), dim=1) for a in (asked.x, asked.h))
            answer = call(layer, name, changed(asked, x, h))
            check_close(answer[:, :i], call(layer, name, asked)[:, :i], name, asked)


def test_tokens_of_the_mlp_are_independent(layer: Implementation) -> None:
    for name, asked in asked_of(layer, ("mlp",)):
        whole = call(layer, name, asked)
        for i in range(whole.shape[1]):
            one = changed(asked, asked.x[:, i : i + 1].clone(), asked.h[:, i : i + 1].clone())
            check_close(call(layer, name, one), whole[:, i : i + 1], name, asked)


def test_rows_are_independent(layer: Implementation) -> None:
    for name, asked in asked_of(layer, batch=3):
        whole = call(layer, name, asked)
        for b in range(3):
            row = changed(asked, asked.x[b : b + 1].clone(), asked.h[b : b + 1].clone())
            check_close(call(layer, name, row), whole[b : b + 1], name, asked)


def test_decoding_is_attention(layer: Implementation) -> None:
    for name, asked in asked_of(layer, ("decode",), tokens=9):
        check_close(call(layer, name, asked), expected("attention", replace(asked, x=asked.h)), name, asked)


def test_descent(layer: Implementation) -> None:
    """Attention's energy is concave, so that any step lowers it; the MLP's falls where steps are small."""
    for name, asked in asked_of(layer, ("attention", "mlp"), tokens=8):
        P, eta = asked.config.preconditioner, asked.config.step_size
        may_climb = P.kind == "low-rank-printed" or P.per_head or (name == "mlp" and eta > 0.3)
        if asked.config.norm == "none" and not may_climb:
            after = replace(asked, x=call(layer, name, asked))
            fall = expected(f"{name}_energy", asked) - expected(f"{name}_energy", after)
            assert bool((fall >= -1e-9).all()), f"{name}, {asked.config}"


def test_gradients(layer: Implementation) -> None:
    if layer.arrays != "torch" or "gradients" in layer.not_offered:
        raise SkipTest("it records no gradients")
    for name, asked in asked_of(layer, tokens=4):
        for slope, right in zip(slopes(layer, name, asked), slopes(None, name, asked), strict=True):
            check_close(slope, right, name, asked, 1e-6)


def test_a_call_changes_nothing_and_answers_the_same_again(layer: Implementation) -> None:
    for name, asked in asked_of(layer):
        arrays = (asked.x, asked.h, *asked.weights.values())
        before = [array.clone() for array in arrays]
        answer = call(layer, name, asked)
        copy = answer.clone()
        call(layer, name, case(layer, asked.config, seed=7))
        assert torch.equal(answer, copy), "a later call changed an answer"
        assert torch.equal(call(layer, name, asked), copy), "two calls differ"
        assert all(map(torch.equal, arrays, before)), "it changed its arguments"


def test_edited_arrays_are_read_again(layer: Implementation) -> None:
    for name, asked in asked_of(layer):
        call(layer, name, asked)
        for array in (asked.h, *asked.weights.values()):
            array.mul_(0.9).add_(0.01)
        check_close(call(layer, name, asked), expected(name, asked), name, asked)


def test_transposed_arrays(layer: Implementation) -> None:
    for name, asked in asked_of(layer):
        h = asked.h.mT.contiguous().mT
        weights = {key: w.mT.contiguous().mT if w.dim() > 1 else w for key, w in asked.weights.items()}
        turned = changed(replace(asked, weights=weights), asked.x, h)
        check_close(call(layer, name, turned), expected(name, asked), name, asked)


def test_long_rows_large_numbers_and_no_gradients(layer: Implementation) -> None:
    for name in UPDATES:
        for config in list(configurations(layer, name))[:1]:
            asked = case(layer, config)
            for extreme in (case(layer, config, 1, 300), changed(asked, 100 * asked.x, 100 * asked.h)):
                with torch.no_grad():
                    check_close(call(layer, name, extreme), expected(name, extreme), name, extreme)


def test_bad_input(layer: Implementation) -> None:
    if "validation" in layer.not_offered:
        raise SkipTest("it does not promise to refuse anything")
    for name in ("attention", "mlp"):
        for config in list(configurations(layer, name))[:1]:
            asked = case(layer, config)
            first, weight = next(iter(asked.weights.items()))
            for bad in (
                replace(asked, x=asked.x[:, :-1]),
                replace(asked, h=asked.h * torch.nan),
                replace(asked, x=asked.x.long()),
                replace(asked, weights={**asked.weights, first: weight[..., :-1]}),
            ):
                try:
                    call(layer, name, bad)
                except (ValueError, TypeError):
                    continue
                raise AssertionError(f"{name} took bad input")


def test_energy_layer_structure(layer: EnergyLayer) -> None:
    arguments = layer_case(layer, tokens=6)
    before = [a.clone() for a in arguments]
    whole = change(layer, arguments)
    assert whole.shape == arguments[0].shape
    assert torch.equal(change(layer, arguments), whole)
    assert all(map(torch.equal, arguments, before))
    for b in range(3 if layer.stated.step_of == "sum" else 0):
        assert_close(change(layer, [a[b : b + 1] for a in arguments]), whole[b : b + 1])
    shapes = (*layer.state.values(), *layer.memories.values())
    if (
        layer.causal
        and not layer.coupled
        and "causality" not in layer.not_offered
        and all(s[0] == "J" for s in shapes)
    ):
        later = [torch.cat((a[:, :3], a[:, 3:] + 1), 1) for a in arguments]
        assert_close(change(layer, later)[:, :3], whole[:, :3])


def test_energy_layer_descent(layer: EnergyLayer) -> None:
    if layer.energy is None or not layer.step.monotone or layer.step.penalty or layer.arrays != "torch":
        raise SkipTest("its whole step is not claimed to descend")
    for seed in range(20):
        x, *memory = layer_case(layer, seed=seed)
        fall = layer.energy(x, *memory) - layer.energy(x + change(layer, [x, *memory]), *memory)
        assert bool((fall >= -1e-9).all())
