"""Low precision at realistic sizes: float32 and bfloat16 stay within the measured law of their error.

The running bounds of `budgets` hold for every case but grow with each length; over hundreds of features
errors average out. For dense normal cases the error of one update follows c u (1 + S), S the largest logit
(docs/mathematics.md §16), which is what is asserted here, Frobenius-wise and row by row, plus the rounding of
the output itself. The law was measured on matrix products that add up in blocks; a correct implementation may
add up term by term. So in float32 twice the error of an evaluation that takes every product by itself is allowed on
top. In bfloat16 matrix units add up in float32, and what may be done term by term is to add the step of each head or
hidden unit to the state: twice the error of that is allowed where it is more than the law's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import unit_roundoff
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.oracle.golden import energy_of, golden
from cemverify.conformance.properties.base import Asked, By, Over, Property
from cemverify.conformance.properties.decoding import SEVERAL_TOKENS, cache_changes_nothing
from cemverify.conformance.properties.gradient import TRIVIAL, energy_is_stated, update_is_gradient
from cemverify.conformance.properties.mixed import mixed
from cemverify.conformance.properties.rivals import SWAPPED_GATE, SWAPPED_HEADS, Rival
from cemverify.conformance.questions.cases import Case, Layer, dense_case
from cemverify.conformance.questions.spaces import Source, Space

# (whole, row): multiples of u (1 + S) for attention, of u for the MLP
_ATTENTION = {torch.float32: (4.0, 8.0), torch.bfloat16: (1.0, 2.0)}
_MLP = {torch.float32: (16.0, 20.0), torch.bfloat16: (3.0, 4.0)}


def attention_error_follows_the_law(caller: Caller, case: Case) -> Evidence:
    """|F - golden| <= c u (1 + S) |F|, over all and per token."""
    case = case.to(caller.dtype).to(torch.float64)
    energy = energy_of(case)
    logits = torch.einsum("bjd,krd->bkjr", case.x, case.weights["W_Q"]) @ energy.remember(case.h).keys.mT
    S = float(logits.abs().max()) / case.attention.tau
    whole, row = _ATTENTION[caller.dtype]
    return _law(caller, case, whole * (1 + S), row * (1 + S), _ATTENTION_BY_TERMS[caller.dtype])


def mlp_error_follows_the_law(caller: Caller, case: Case) -> Evidence:
    """|F - golden| <= c u |F|, over all and per token."""
    return _law(caller, case.to(caller.dtype).to(torch.float64), *_MLP[caller.dtype], _MLP_BY_TERMS[caller.dtype])


def properties() -> Iterator[Property]:
    """The properties of the family."""
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        yield Property(
            f"precision/attention/{name}",
            f"In {name} attention's relative error is at most {_ATTENTION[dtype][0]:g} u (1 + largest logit).",
            "docs/mathematics.md §16",
            attention_error_follows_the_law,
            By(_attention_cases, {"T": 1, "J": 64, "B": 2, "K": 4, "D": 128}),
            frozenset({"attention", f"dtype:{name}"}),
            dtype=dtype,
            share=0.25,
            premise="the update is not zero",
            floor=0.9,
            controls=TRIVIAL,
        )
        yield Property(
            f"precision/mlp/{name}",
            f"In {name} the MLP's relative error is at most {_MLP[dtype][0]:g} u, {_MLP[dtype][1]:g} u per token.",
            "docs/mathematics.md §16",
            mlp_error_follows_the_law,
            By(_mlp_cases, {"T": 1, "J": 8, "B": 2, "M": 384, "D": 128}),
            frozenset({"mlp", "activation:silu", f"dtype:{name}"}),
            dtype=dtype,
            share=0.25,
            premise="the update is not zero",
            floor=0.9,
            controls=TRIVIAL,
        )

    yield from _bounded()
    space = mixed("attention", steps=(1,), textures=("plain", "non-contiguous"))
    yield Property(
        "precision/attention/bfloat16-any-options",
        "In bfloat16 attention stays within its running error bound, for any combination of options.",
        "docs/mathematics.md §16",
        update_is_gradient(SWAPPED_HEADS),
        Over(space),
        space.features() | {"dtype:bfloat16"},
        dtype=torch.bfloat16,
        premise=SWAPPED_HEADS.premise,
        controls=TRIVIAL,
    )


def _bounded() -> Iterator[Property]:
    """In float32, by the running bound, for any combination of options: layers, decoding, stated energies."""
    layers: tuple[tuple[Layer, Rival, float], ...] = (
        ("attention", SWAPPED_HEADS, 1.0),
        ("mlp", SWAPPED_GATE, 1.0),
        ("block", SWAPPED_HEADS, 0.6),
    )
    for layer, rival, share in layers:
        space = mixed(layer, steps=(1, 2), apart=layer != "block")
        yield _float32(layer, f"the {layer} stays", update_is_gradient(rival), space, share, rival.premise)
    space = mixed("attention", steps=(1, 2), apart=False)
    yield _float32(
        "decode",
        "decoding stays",
        cache_changes_nothing,
        space,
        0.4,
        SEVERAL_TOKENS,
        controls=frozenset(),
        needs={"decode"},
        without={"attention"},
    )
    for layer, rival, _ in layers[:2]:
        premise = rival.premise.replace("the output", "the energy")
        check, needs = energy_is_stated(rival), {f"{layer}_energy", "start"}
        words = f"the {layer}'s stated energy stays"
        yield _float32(f"{layer}-energy", words, check, mixed(layer), 0.4, premise, needs=needs, without={layer})


def _float32(
    name: str,
    words: str,
    check: Callable[[Caller, Case], Evidence],
    space: Space,
    share: float,
    premise: str,
    controls: frozenset[str] = TRIVIAL,
    needs: Iterable[str] = (),
    without: Iterable[str] = (),
) -> Property:
    return Property(
        f"precision/{name}/float32-any-options",
        f"In float32 {words} within its running error bound, for any combination of options.",
        "docs/mathematics.md §16",
        check,
        Over(space),
        (space.features() - set(without)) | {*needs, "dtype:float32"},
        dtype=torch.float32,
        share=share,
        premise=premise,
        controls=controls,
    )


@st.composite
def _draw_attention(draw: st.DrawFn, source: Source, asked: Asked) -> Case:
    dims, tokens = ((16,), (8,)) if source == "small" else ((64, 128), (32, 64))
    D, J, K = draw(st.sampled_from(dims)), draw(st.sampled_from(tokens)), draw(st.sampled_from((2, 4)))
    config = AttentionConfig(D, K, temperature=math.sqrt(D / K))
    return _start(dense_case(config, 2, J, draw(st.integers(0, 2**32 - 1))), asked)


@st.composite
def _draw_mlp(draw: st.DrawFn, source: Source, asked: Asked) -> Case:
    D = draw(st.sampled_from((16,) if source == "small" else (64, 128)))
    return _start(dense_case(MLPConfig(D, 3 * D), 2, 8, draw(st.integers(0, 2**32 - 1))), asked)


def _attention_cases(source: Source, asked: Asked) -> SearchStrategy[Case]:
    return _draw_attention(source, asked)


def _mlp_cases(source: Source, asked: Asked) -> SearchStrategy[Case]:
    return _draw_mlp(source, asked)


def _start(case: Case, asked: Asked) -> Case:
    return replace(case, x=case.h) if "start" in asked.absent else case


def _law(caller: Caller, case: Case, whole: float, row: float, term_by_term: Callable[[Case], Tensor]) -> Evidence:
    u = unit_roundoff(caller.dtype)
    update = golden(case) - case.x  # (B, J, D)
    error = caller.output(case) - case.x - update
    size = update.norm(dim=-1)  # (B, J)
    rounding = u * (case.x + update).norm(dim=-1)  # the output is x + F, rounded
    plain = term_by_term(case) - update
    # the evaluation in bfloat16 has all the law's errors too
    with_terms = torch.add if caller.dtype == torch.float32 else torch.maximum
    per_row = with_terms(row * u * size + rounding, 2 * plain.norm(dim=-1))
    everything = with_terms(whole * u * update.norm() + rounding.norm(), 2 * plain.norm())
    zero = torch.zeros(())
    return judge(
        Comparison("|error| of each token's update", error.norm(dim=-1), zero.expand_as(per_row), per_row, "at most"),
        Comparison("|error| of the whole update", error.norm()[None], zero[None], everything[None], "at most"),
        telling=moved(update.norm()[None], everything[None]),
    )


def _attention_term_by_term(case: Case) -> Tensor:
    """The update in float32, every sum over several indices taken one product at a time: (B, J, D)."""
    x, h, W_Q, W_K = (a.float().numpy() for a in (case.x, case.h, case.weights["W_Q"], case.weights["W_K"]))
    keys = np.einsum("krd,bjd->bkjr", W_K, h)
    scores = np.einsum("krd,bid,bkjr->bkij", W_Q, x, keys) / np.float32(case.attention.tau)
    scores = np.where(np.tri(x.shape[1], dtype=bool), scores, -np.inf)
    a = np.exp(scores - scores.max(-1, keepdims=True))
    a /= a.sum(-1, keepdims=True)
    return torch.from_numpy(np.einsum("krd,bkij,bkjr->bid", W_Q, a, keys)).double()


def _mlp_term_by_term(case: Case) -> Tensor:
    """The update in float32, one product at a time: (B, J, D)."""
    x, h, V, W = (a.float().numpy() for a in (case.x, case.h, case.weights["V"], case.weights["W"]))
    z = np.einsum("md,bjd->bjm", V, x)
    hidden = np.einsum("md,bjd->bjm", W, h) * (z / (1 + np.exp(-z)))
    return torch.from_numpy(np.einsum("md,bjm->bjd", V, hidden)).double()


def _attention_head_by_head(case: Case) -> Tensor:
    """The update in bfloat16, each head's step added to the state by itself: (B, J, D)."""
    case = case.to(torch.bfloat16)
    x, W_Q, W_K = case.x, case.weights["W_Q"], case.weights["W_K"]
    keys, queries = (torch.einsum("bjd,krd->bkjr", states, W) for states, W in ((case.h, W_K), (x, W_Q)))
    scores = (queries @ keys.mT) / case.attention.tau
    future = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
    attended = torch.softmax(scores.masked_fill(future, -math.inf), -1) @ keys
    return _added(x, torch.einsum("bkjr,krd->kbjd", attended, W_Q))


def _mlp_unit_by_unit(case: Case) -> Tensor:
    """The update in bfloat16, each hidden unit's step added to the state by itself: (B, J, D)."""
    case = case.to(torch.bfloat16)
    x, V = case.x, case.weights["V"]
    hidden = (case.h @ case.weights["W"].mT) * torch.nn.functional.silu(x @ V.mT)  # (B, J, M)
    return _added(x, (hidden[..., m, None] * V[m] for m in range(V.shape[0])))


def _added(x: Tensor, steps: Iterable[Tensor]) -> Tensor:
    """What x has moved by after one step after the other, in float64."""
    moved = x
    for step in steps:
        moved = moved + step
    return moved.double() - x.double()


_ATTENTION_BY_TERMS = {torch.float32: _attention_term_by_term, torch.bfloat16: _attention_head_by_head}
_MLP_BY_TERMS = {torch.float32: _mlp_term_by_term, torch.bfloat16: _mlp_unit_by_unit}
