"""Low precision at realistic sizes: float32 and bfloat16 stay within the measured law of their error.

The running bounds of `budgets` hold for every case but grow with each length; over hundreds of features
errors average out. For dense normal cases the error of one update follows c u (1 + S), S the largest logit
(docs/mathematics.md §16). This law is asserted here, in the Frobenius norm and row by row, plus the rounding of the
output itself. It was measured on matrix products that add up in blocks; a correct implementation may add up term by
term. So in float32 twice the error of an evaluation that takes every product by itself is allowed on top. In bfloat16
matrix units add up in float32, but an implementation may add the step of each head or hidden unit to the state one by
one; the cost of that is derived (`_of_added_terms`). It grows with the number of terms, so the MLP is tested with few
hidden units: with 48 the allowance is two to three times the law, with 384 nearly four times.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import unit_roundoff
from cemverify.conformance.oracle.evidence import Compared, Comparison, Evidence, moved
from cemverify.conformance.oracle.golden import energy_of, golden, head_gradients
from cemverify.conformance.oracle.rivals import SWAPPED_GATE, SWAPPED_HEADS, Rival
from cemverify.conformance.properties.base import TRIVIAL, Offer, Property, case_property, update_property
from cemverify.conformance.properties.decoding import SEVERAL_TOKENS, cache_changes_nothing
from cemverify.conformance.properties.explanations import BOUNDED, Explanation
from cemverify.conformance.questions.aims import Questions
from cemverify.conformance.questions.cases import Case, Layer, dense_case
from cemverify.conformance.questions.spaces import mixed

# (whole, row): multiples of u (1 + S) for attention, of u for the MLP
_ATTENTION = {torch.float32: (4.0, 8.0), torch.bfloat16: (1.0, 2.0)}
_MLP = {torch.float32: (16.0, 20.0), torch.bfloat16: (3.0, 4.0)}
_FEW_UNITS = 48  # hidden units in bfloat16
_SIZES = ((16, 8), (64, 32), (128, 64))  # features and tokens


def attention_error_follows_the_law(caller: Caller, case: Case) -> Evidence:
    """|F - golden| <= c u (1 + S) |F|, over all and per token."""
    case = case.to(caller.dtype).to(torch.float64)
    energy = energy_of(case)
    logits = torch.einsum("bjd,krd->bkjr", case.x, case.weights["W_Q"]) @ energy.remember(case.h).keys.mT
    S = float(logits.abs().max()) / case.attention.tau
    whole, row = _ATTENTION[caller.dtype]
    return _law(caller, case, whole * (1 + S), row * (1 + S))


def mlp_error_follows_the_law(caller: Caller, case: Case) -> Evidence:
    """|F - golden| <= c u |F|, over all and per token."""
    return _law(caller, case.to(caller.dtype).to(torch.float64), *_MLP[caller.dtype])


_OF_ATTENTION = Explanation(
    formula="|F - golden| <= c u (1 + S) |update|,  S the largest logit; or the running bound of the sums",
    why="A sum or a softmax in too low a precision costs digits that no loss curve shows until training diverges.",
)
_OF_THE_MLP = Explanation(
    formula="|F - golden| <= c u |update|; or the running bound of the sums",
    why="A sum over thousands of hidden units in bfloat16 loses most of its digits.",
)


def properties() -> Iterator[Property]:
    """Errors in float32 and bfloat16: by the measured law, and by the running bound for any options."""
    for dtype, name in ((torch.float32, "float32"), (torch.bfloat16, "bfloat16")):
        hidden = None if dtype == torch.float32 else _FEW_UNITS
        law: dict[str, Any] = {
            "dtype": dtype,
            "premise": "the update is not zero",
            "floor": 0.9,
            "controls": TRIVIAL,
        }
        yield Property(
            f"precision/attention/{name}",
            claim=f"In {name} attention's relative error is at most {_ATTENTION[dtype][0]:g} u (1 + largest logit).",
            source="docs/mathematics.md §16",
            **_OF_ATTENTION,
            check=attention_error_follows_the_law,
            questions=_OfTheLaw("attention"),
            needs=frozenset({"attention", f"dtype:{name}"}),
            **law,
        )
        yield Property(
            f"precision/mlp/{name}",
            claim=f"In {name} the MLP's relative error is at most {_MLP[dtype][0]:g} u, {_MLP[dtype][1]:g} u per "
            f"token.",
            source="docs/mathematics.md §16",
            **_OF_THE_MLP,
            check=mlp_error_follows_the_law,
            questions=_OfTheLaw("mlp", hidden),
            needs=frozenset({"mlp", "activation:silu", f"dtype:{name}"}),
            **law,
        )
    yield from _bounded()
    for dtype, name, since in ((torch.bfloat16, "bfloat16", "2026.11"), (torch.float16, "float16", "2026.12")):
        yield update_property(
            f"precision/attention/{name}-any-options",
            claim=f"In {name} answers stay within their running error bound, for any combination of options.",
            source="docs/mathematics.md §16",
            **_OF_ATTENTION,
            space=mixed("attention", steps=(1,), textures=("plain", "non-contiguous")),
            rival=SWAPPED_HEADS,
            needs={f"dtype:{name}"},
            dtype=dtype,
            since=since,
        )


def _bounded() -> Iterator[Property]:
    """In float32, by the running bound, for any combination of options: layers, decoding, stated energies."""
    float32: dict[str, Any] = {"needs": {"dtype:float32"}, "dtype": torch.float32}
    claim = "In float32 answers stay within their running error bound, for any combination of options."
    source = "docs/mathematics.md §16"
    # each option of the contract in every run; pairs of them meet in float64
    layers: tuple[tuple[Layer, Explanation, Rival], ...] = (
        ("attention", _OF_ATTENTION, SWAPPED_HEADS),
        ("mlp", _OF_THE_MLP, SWAPPED_GATE),
        ("block", BOUNDED, SWAPPED_HEADS),
    )
    for layer, explanation, rival in layers:
        id_ = f"precision/{layer}/float32-any-options"
        space = mixed(layer, steps=(1, 2), apart=layer != "block", each_value=True)
        yield update_property(id_, claim=claim, source=source, **explanation, space=space, rival=rival, **float32)
    yield case_property(
        "precision/decode/float32-any-options",
        claim=claim,
        source=source,
        **BOUNDED,
        check=cache_changes_nothing,
        space=mixed("attention", steps=(1, 2), apart=False, each_value=True),
        function="decode",
        premise=SEVERAL_TOKENS,
        **float32,
    )
    for layer, _, rival in layers[:2]:
        id_ = f"precision/{layer}-energy/float32-any-options"
        space = mixed(layer, each_value=True)
        yield update_property(
            id_,
            claim=claim,
            source=source,
            **BOUNDED,
            space=space,
            rival=rival,
            function=f"{layer}_energy",
            **float32,
        )


@dataclass(frozen=True)
class _OfTheLaw(Questions):
    """Normal cases of three sizes in turn; only the largest if each shape is compiled.

    Attributes:
        hidden: the MLP's units, if the same in every size.
    """

    layer: Layer
    hidden: int | None = None

    def scattered(self, offer: Offer, seed: int) -> Case:
        D, J = _SIZES[-1 if offer.kind.compiles else seed % len(_SIZES)]
        if self.layer == "mlp":
            case = dense_case(MLPConfig(D, self.hidden or 3 * D), 2, 8, seed)
        else:
            K = 4 if offer.kind.compiles or seed // len(_SIZES) % 2 else 2
            case = dense_case(AttentionConfig(D, K, D // K, temperature=math.sqrt(D / K)), 1, J, seed)
        return replace(case, x=case.h) if "start" in offer.absent else case

    def reach(self) -> Mapping[str, int]:
        D, J = _SIZES[-1]
        of_layer = {"J": 8, "B": 2, "M": self.hidden or 3 * D} if self.layer == "mlp" else {"J": J, "B": 1, "K": 4}
        return {"T": 1, **of_layer, "D": D}


def _law(caller: Caller, case: Case, whole: float, row: float) -> Evidence:
    u = unit_roundoff(caller.dtype)
    update = golden(case) - case.x  # (B, J, D)
    error = caller.output(case) - case.x - update
    size = update.norm(dim=-1)  # (B, J)
    rounding = u * (case.x + update).norm(dim=-1)  # the output is x + F, rounded
    per_row, everything = row * u * size + rounding, whole * u * update.norm() + rounding.norm()
    if caller.dtype == torch.float32:
        term_by_term = _attention_term_by_term if case.layer == "attention" else _mlp_term_by_term
        plain = term_by_term(case) - update
        per_row, everything = per_row + 2 * plain.norm(dim=-1), everything + 2 * plain.norm()
    else:
        each, together = _of_added_terms(case.x, _terms(case), u)
        per_row = torch.maximum(per_row, torch.hypot(row * u * size, each))
        everything = torch.maximum(everything, torch.hypot(whole * u * update.norm(), together))
    zero = torch.zeros(())
    return Evidence.of(
        Comparison(
            Compared.ROW_NORM("|error| of each token's update"),
            error.norm(dim=-1),
            zero.expand_as(per_row),
            per_row,
            "at most",
        ),
        Comparison(
            Compared.NORM("|error| of the whole update"),
            error.norm()[None],
            zero[None],
            everything[None],
            "at most",
        ),
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


def _terms(case: Case) -> Tensor:
    """The step of each head or hidden unit: (B, J, K or M, D)."""
    if case.layer == "attention":
        return -head_gradients(case, case.x).movedim(1, 2)
    V = case.weights["V"]
    hidden = (case.h @ case.weights["W"].mT) * torch.nn.functional.silu(case.x @ V.mT)  # (B, J, M)
    return hidden[..., None] * V


def _of_added_terms(x: Tensor, terms: Tensor, u: float) -> tuple[Tensor, Tensor]:
    """How large roundoff may be if each term is added to the state by itself: for each token (B, J), and for all.

    The n-th addition rounds a partial sum s_n, known in float64. Between 2^e and 2^(e+1) numbers are 2 u 2^e apart,
    so it errs by at most u 2^e. If these errors are uniform and independent, as analyses of sums of generic numbers
    assume (Higham and Mary 2019), those of one coordinate have the variance v = sum_n (u 2^e_n)^2 / 3, and one
    coordinate may have most of it. All other roundings are covered by the law, and independent errors add up as
    squares.

    Args:
        x: (B, J, D). terms: (B, J, n, D), in the order of the sum; another order has sums as large.
    """
    sums = x[..., None, :] + terms.cumsum(-2)
    spacing = torch.exp2(sums.abs().clamp(min=torch.finfo(torch.float64).tiny).log2().floor())
    variance = ((u * spacing) ** 2 / 3).sum(-2)  # (B, J, D)
    return _once_in_a_billion(variance), _once_in_a_billion(variance.flatten())


def _once_in_a_billion(variance: Tensor) -> Tensor:
    """What the norm of independent errors with variances v, (..., D), exceeds at most once in a billion: (...).

    A uniform e has E exp(s e^2) <= 1 / sqrt(1 - 2 s v), as if it were normal. By Markov's inequality |e|^2 exceeds
    q with a probability of at most exp(-s q) / sqrt(prod (1 - 2 s v)), for each s; the s with the least q is taken.
    """
    shares = torch.arange(0.02, 1, 0.04, dtype=variance.dtype, device=variance.device)
    s = shares / (2 * variance.amax(-1, keepdim=True))  # (..., 25)
    logarithms = torch.log1p(-2 * s[..., None, :] * variance[..., None]).sum(-2)
    return ((math.log(1e9) - logarithms / 2) / s).amin(-1).sqrt()
