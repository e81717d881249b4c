"""Claims about operations, memory and parameters, and figures that do not fit (docs/mathematics.md §14, §15, §17)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from typing import TypeVar

import sympy
import torch
from hypothesis import strategies as st
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, DiagonalKind, MLPConfig
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig, SwiGLU, SwiGLUConfig
from cemverify.cem.models import Block, BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.cem.presets import CONTEXT, SIZES, VOCABULARY, Size, full_cem, llama
from cemverify.claims.base import Claim
from cemverify.claims.evidence import Counterexample, Derivation, Properties, Search, Working, working

_Module = TypeVar("_Module", bound=nn.Module)

# keys that a causal token attends to, in the mean over a full context
_MEAN_KEYS = Fraction(CONTEXT + 1, 2)


def claims() -> Iterator[Claim]:
    """The sections' claims."""
    yield from _diagonal_claims()
    yield from _operation_claims()
    yield from _parameter_claims()
    yield from _figure_claims()


def _diagonal_claims() -> Iterator[Claim]:
    yield Claim(
        id="14-value-path",
        source="Sec. 2.3",
        statement="A diagonal in A_k adds the attended memory itself to the update, weighted by the diagonal.",
        formula="-grad eps = sum_k W_Q^T sum_j a_kij W_K h_j + sum_k d_k * sum_j a_kij h_j",
        proof=(
            "beta_kj = W_Q^T W_K h_j + d_k * h_j, and -grad eps = sum a beta. If all heads share d, the second sum "
            "is d * sum_j (sum_k a_kij) h_j: the weights are added up before they meet h."
        ),
        evidence=(
            Derivation("two heads, two tokens, D = 2, R = 1, all quantities symbols", _value_path),
            Properties(("gradient/attention/diagonal-shared", "gradient/attention/diagonal-per-head"), examples=20),
        ),
    )
    yield Claim(
        id="14-one-attention",
        source="ours",
        statement="Attention with a diagonal is plain attention of head dimension R + D whose values are its keys.",
        formula="queries (W_Q x, d * x), keys = values (W_K h, h), output (W_Q^T, diag(d)), scale 1/tau",
        proof="(W_Q x).(W_K h) + (d * x).h = x.(W_Q^T W_K + diag(d)) h, and W_Q^T W_K h + d * h = beta.",
        evidence=(Derivation("one head, two tokens, D = 2, R = 1, all quantities symbols", _one_attention),),
    )
    yield Claim(
        id="14-one-tensor-cache",
        source="ours",
        statement="Decoding with CEM attention keeps half the numbers per token that Llama's keeps.",
        formula="numbers kept by CEM attention = (numbers kept by Llama attention) / 2",
        condition=(
            "no diagonal; with one, the memory h is needed beside the keys (or the keys are computed anew from h)"
        ),
        proof=(
            "Keys serve as values, so K R numbers per token instead of 2 K R. The diagonal's value path needs h_j "
            "itself: D more, which is Llama's 2 K R again for K R = D."
        ),
        evidence=(
            Derivation("numbers in the caches of the reference, no diagonal", _cache_without_diagonal),
            Properties(("structure/decode/cached-equals-uncached-plain",), examples=20),
            Counterexample("the same with a diagonal", _cache_with_diagonal),
            Search(
                "heads, head dimension and tokens, shared diagonal",
                st.tuples(*(st.integers(1, 4) for _ in range(3))),
                violates=lambda c: 2 * _kept(*c, diagonal="shared") != _kept_by_llama(*c),
                size=max,
                largest=3,
            ),
        ),
    )


def _operation_claims() -> Iterator[Claim]:
    yield Claim(
        id="14-operations",
        source="ours",
        statement="The matrix products that run are those of the formulas used here.",
        formula=(
            "per token and layer, a multiply and an add counting two, n keys attended: Llama 8 D^2 + 4 n D, CEM "
            "2 D^2 + T (4 D^2 + 4 n D [+ 4 n D shared, + 4 n K D per-head diagonal]); MLP 6 D M and (2 + 4 T) D M"
        ),
        proof=(
            "K R = D. Projections: keys once, queries and output in every step; scores and attended keys in every "
            "step. A diagonal adds one product of width D to the scores and one to the values, per head or once."
        ),
        evidence=(Derivation("PyTorch's counter on the layers of the reference, dense, T = 1 and 2", _products_run),),
    )
    yield Claim(
        id="14-attention-cost",
        source="ours",
        statement="At T = 1, CEM attention costs less than Llama's.",
        formula="FLOPs of CEM attention at T = 1 < FLOPs of Llama attention, n keys attended",
        condition=(
            "no diagonal in A_k; or so few keys that n (4 D + 2 K) < 2 D^2 - 3 D with a shared diagonal, "
            "n K (4 D + 1) < 2 D^2 - 3 K D with one per head (at J = 2048 no model of Table 1 has so few in the mean)"
        ),
        proof=(
            "Without a diagonal 6 D^2 + 4 n D < 8 D^2 + 4 n D. A shared diagonal adds scores and values of width D, "
            "3 D + n (4 D + 2 K) in all; one per head adds 3 D + n (4 D + 1) for each head. Tying saved 2 D^2."
        ),
        evidence=(
            Derivation("the model sizes of Table 1 without a diagonal, J = 2048", _costs_less_without_diagonal),
            Derivation("small D, K and n with a diagonal", _costs_less_with_few_keys),
            Counterexample("the 86M model at J = 2048 with its diagonal's exact gradient", _costs_more),
            Search(
                "heads, head dimension and keys, shared diagonal",
                st.tuples(*(st.integers(1, 16) for _ in range(3))),
                violates=lambda c: (
                    _attention_flops(c[0] * c[1], c[0], Fraction(c[2]), 1, "shared")
                    >= _llama_flops(c[0] * c[1], Fraction(c[2]))
                ),
                size=max,
                largest=CONTEXT,
            ),
        ),
    )
    yield Claim(
        id="14-diagonal-cost",
        source="ours",
        statement=(
            "With its exact gradient a shared diagonal makes attention at T = 1 between 1.2 and 1.3 times as costly "
            "as Llama's, one per head more than four times."
        ),
        formula="1.2 < shared / Llama < 1.3,  per head / Llama > 4, at the model sizes of Table 1 and J = 2048",
        proof=(
            "Products of width D: two for a shared diagonal, 2 K for one per head, where plain attention has two for "
            "all heads together."
        ),
        evidence=(Derivation("all ratios from the formulas, T = 1 and T = 2", _diagonal_ratios),),
    )
    yield Claim(
        id="14-mlp-cost",
        source="ours",
        statement="At equal hidden width a CEM MLP costs as many operations as Llama's.",
        formula="(2 + 4 T) D M = 6 D M",
        condition="T = 1; T = 2 costs 5/3 as much",
        proof="The gate on the memory is computed once, 2 D M; each step multiplies by V and by V^T, 4 D M.",
        evidence=(
            Derivation("the matrix products that run at T = 1, model sizes of Table 1", _mlp_at_one_step),
            Counterexample("T = 2, model sizes of Table 1", _mlp_at_two_steps),
            Search(
                "number of steps",
                st.integers(1, 8),
                violates=lambda T: _mlp_flops(1, 1, T) != _swiglu_flops(1, 1),
                size=float,
                largest=2,
            ),
        ),
    )
    yield Claim(
        id="17-outside-recursion",
        source="text on recursion",
        statement="Most of a recursive layer's computation is performed once, outside the recursion.",
        formula="(FLOPs outside the recursion) / (all FLOPs) > 1/2",
        proof=(
            "Outside are the keys, 2 D^2 of 2 D^2 + T (4 D^2 + 4 n D), and the MLP's gate, 2 D M of (2 + 4 T) D M: "
            "at most one third at T = 1 and less with every step. Preconditioners merged into W_O are computed once "
            "per forward pass, for all tokens together."
        ),
        evidence=(
            Counterexample("the model sizes of Table 1 at T = 2, J = 2048, causal mean", _share_outside),
            Search(
                "number of steps, for the MLP",
                st.integers(1, 8),
                violates=lambda T: 2 * _mlp_flops(1, 1, 0) <= _mlp_flops(1, 1, T),
                size=float,
                largest=2,
            ),
        ),
    )


def _parameter_claims() -> Iterator[Claim]:
    yield Claim(
        id="15-llama-counts",
        source="Table 1",
        statement="The Llama models of Table 1 have 86, 108, 134 and 162 million parameters.",
        formula="floor((2 V D + L (4 D^2 + 3 D M + 2 D) + D) / 10^6) = 86, 108, 134, 162",
        proof=(
            "Untied embeddings of 32000 tokens, two gains a block and one at the end, no biases. The last model has "
            "162.8 million: Table 1 truncates."
        ),
        evidence=(Derivation("the models built, and the formula", _llama_counts),),
    )
    yield Claim(
        id="15-full-cem-counts",
        source="ours",
        statement="Full CEM of the same shape has 75 to 82 % of the parameters of its Llama model.",
        formula="2 V D + L (2 D^2 + D + 9 K D + 2 D M + 33 D + 2 D) + D",
        proof=(
            "Attention: two projections 2 D^2, a shared diagonal D, a preconditioner of rank 4 per head, "
            "D + 2 * 4 D each. MLP: two projections 2 D M, a preconditioner of rank 16, D + 2 * 16 D. The embeddings "
            "are Llama's."
        ),
        evidence=(Derivation("the models built, and the formula", _full_cem_counts),),
    )
    yield Claim(
        id="15-half-attention",
        source="Eq. 5",
        statement=(
            "CEM attention has half the parameters of Llama's, up to 9 % more with diagonal and preconditioners."
        ),
        formula="2 D^2 = 4 D^2 / 2;  1/2 < (2 D^2 + D + 9 K D) / (4 D^2) < 1.09 / 2",
        proof="Tying W_V = W_K and W_O = W_Q halves them exactly; what full CEM adds is of order K D.",
        evidence=(Derivation("the attention layers built, tied only and full CEM", _half_the_attention),),
    )
    yield Claim(
        id="15-two-thirds-mlp",
        source="Eq. 11; text on Fig. 3",
        statement="A CEM MLP has two thirds of the parameters of Llama's, up to 1 % more with its preconditioner.",
        formula="2 D M = (2/3) 3 D M;  2/3 < (2 D M + 33 D) / (3 D M) < 1.01 * 2/3",
        proof="Llama's gate and down projection are one matrix, so two are left of three.",
        evidence=(Derivation("the MLPs built, tied only and full CEM", _two_thirds_of_the_mlp),),
    )
    yield Claim(
        id="15-matched-mlp",
        source="Fig. 2b",
        statement="A CEM MLP with 3/2 of the hidden units has exactly the parameters of Llama's.",
        formula="2 D (3 M / 2) = 3 D M",
        proof="Two projections instead of three; all M of Table 1 are even. A preconditioner comes on top.",
        evidence=(Derivation("the MLPs built without preconditioner", _matched_mlp),),
    )
    yield Claim(
        id="15-depth-is-free",
        source="Algorithm 1",
        statement="More recursion steps add no parameters.",
        formula="parameters(T) = parameters(1)",
        proof="All steps share the energy, the preconditioner and the gain.",
        evidence=(
            Derivation("full CEM built at T = 1, 2, 4, 8", _depth_is_free),
            Properties(("recursion/attention/steps-compose", "recursion/mlp/steps-compose"), examples=20),
        ),
    )
    yield Claim(
        id="15-gains-and-biases",
        source="ours",
        statement=(
            "Of a full CEM layer, RMSNorm gains are 2 D parameters; self and cross biases per head would add 2 K."
        ),
        formula="with gains - without = 2 L D;  with b_self, b_cross per head - with ALiBi = 2 L K",
        proof=(
            "One gain per channel in attention and one in the MLP; ALiBi learns nothing, two biases per head do. A "
            "gain inside the recursion of its own, beside the one of the pre-norm, would be another 2 D a layer."
        ),
        evidence=(Derivation("full CEM built with and without them", _gains_and_biases),),
    )


def _figure_claims() -> Iterator[Claim]:
    yield Claim(
        id="17-one-third-mlp",
        source="Fig. 3, caption",
        statement="CEM MLPs have one third of the parameters of Llama's MLPs.",
        formula="parameters of the CEM MLP / parameters of Llama's is nearer to 1/3 than to 2/3",
        proof="They have one third *fewer*. The paper's text says two thirds, which is right.",
        evidence=(Counterexample("the model sizes of Table 1", _one_third_is_not),),
    )
    yield Claim(
        id="17-batch-size",
        source="Table 2, App. C.5",
        statement="The effective batch of Table 2 is that of App. C.5.",
        formula="8 sequences per GPU * 4 accumulation steps * 8 GPUs = 128",
        proof="The product is 256. Which of the two was run cannot be told from the paper.",
        evidence=(Counterexample("the product", _batch_size),),
    )
    yield Claim(
        id="17-symbol-for-dimension",
        source="Eq. 5, Table 1",
        statement=(
            "D_h is one dimension, in the shapes of the weights and in the scale D_h^(-1/2) of standard attention."
        ),
        formula=(
            "A_k in R^(D_h x D_h), and q.k / sqrt(D_h) is the score of Vaswani et al., who take one head's dimension"
        ),
        proof=(
            "By its shapes, W_O in R^(D_r x D_h) and A_k in R^(D_h x D_h), and by Table 1, D_h is the model "
            "dimension. Standard attention scales by the dimension of one head. They agree for a single head only."
        ),
        evidence=(
            Counterexample("the model sizes of Table 1", _one_symbol_two_dimensions),
            Search(
                "heads and head dimension",
                st.tuples(st.integers(1, 8), st.integers(1, 8)),
                violates=lambda c: _width_of_A(*c) != c[1],
                size=max,
                largest=SIZES["86M"].dim // SIZES["86M"].heads,
            ),
        ),
    )


def _built(build: Callable[[torch.Generator], _Module]) -> _Module:
    """A module with its shapes but no numbers."""
    with torch.device("meta"):
        return build(torch.Generator("cpu"))


# --- the diagonal ---------------------------------------------------------------------------------


def _vector(name: str) -> sympy.Matrix:
    return sympy.Matrix(sympy.symbols(f"{name}_1:3"))


def _gradient(energy: sympy.Expr, x: sympy.Matrix) -> sympy.Matrix:
    return sympy.Matrix([energy]).jacobian(x).T


def _value_path() -> Working:
    tau = sympy.symbols("tau", positive=True)
    x, h = _vector("x"), [_vector("h_1"), _vector("h_2")]
    W_Q, W_K = [_vector(f"q_{k}").T for k in (1, 2)], [_vector(f"k_{k}").T for k in (1, 2)]
    shared, own = _vector("d"), [_vector("d_1"), _vector("d_2")]

    def low_rank_and_weights(diagonals: Sequence[sympy.Matrix]) -> tuple[sympy.Matrix, list[list[sympy.Expr]]]:
        """-grad eps less the part of W_Q^T W_K, and the weights a_kj."""
        rest, weights = sympy.zeros(2, 1), []
        for Q, K, d in zip(W_Q, W_K, diagonals, strict=True):
            powers = [sympy.exp(x.dot((Q.T * K + sympy.diag(*d)) * h_j) / tau) for h_j in h]
            a = [p / sum(powers) for p in powers]
            energy = -tau * sympy.log(sum(powers))
            rest += -_gradient(energy, x) - Q.T * (a[0] * K * h[0] + a[1] * K * h[1])
            weights.append(a)
        return rest, weights

    rest, a = low_rank_and_weights([shared, shared])
    summed = (a[0][0] + a[1][0]) * h[0] + (a[0][1] + a[1][1]) * h[1]
    off_shared = sympy.simplify(rest - shared.multiply_elementwise(summed))
    rest, a = low_rank_and_weights(own)
    per_head = [d.multiply_elementwise(w[0] * h[0] + w[1] * h[1]) for d, w in zip(own, a, strict=True)]
    off_per_head = sympy.simplify(rest - per_head[0] - per_head[1])
    return working(
        "eps = -tau sum_k log sum_j exp(x . (W_Q,k^T W_K,k + diag(d_k)) h_j / tau), differentiated",
        f"shared: -grad eps - sum_k W_Q^T sum_j a W_K h_j - d * sum_j (a_1j + a_2j) h_j = {list(off_shared)}",
        f"per head: -grad eps - sum_k W_Q^T sum_j a W_K h_j - sum_k d_k * sum_j a_kj h_j = {list(off_per_head)}",
        comes_out=off_shared == off_per_head == sympy.zeros(2, 1),
    )


def _one_attention() -> Working:
    tau = sympy.symbols("tau", positive=True)
    x, d, W_Q, W_K = _vector("x"), _vector("d"), _vector("q").T, _vector("k").T
    h = [_vector("h_1"), _vector("h_2")]
    query = sympy.Matrix.vstack(W_Q * x, d.multiply_elementwise(x))
    keys = [sympy.Matrix.vstack(W_K * h_j, h_j) for h_j in h]
    powers = [sympy.exp(query.dot(key) / tau) for key in keys]
    attended = (powers[0] * keys[0] + powers[1] * keys[1]) / sum(powers)
    output = W_Q.T * attended[:1, :] + d.multiply_elementwise(attended[1:, :])
    scores = [x.dot((W_Q.T * W_K + sympy.diag(*d)) * h_j) for h_j in h]
    energy = -tau * sympy.log(sum(sympy.exp(score / tau) for score in scores))
    differences = [sympy.expand(query.dot(key) - score) for key, score in zip(keys, scores, strict=True)]
    off = sympy.simplify(output + _gradient(energy, x))
    return working(
        "query (W_Q x, d * x), keys and values (W_K h_j, h_j), of dimension R + D = 3",
        f"its scores minus x . (W_Q^T W_K + diag(d)) h_j: {differences}",
        f"its output through (W_Q^T, diag(d)) plus the gradient of eps: {list(off)}",
        comes_out=differences == [0, 0] and off == sympy.zeros(2, 1),
    )


def _kept(heads: int, head_dim: int, tokens: int, *, diagonal: DiagonalKind) -> int:
    """How many numbers CEM attention keeps of one row."""
    layer = _cem_attention(heads * head_dim, heads, diagonal, steps=1)
    memory = layer.energy.remember(torch.empty(1, tokens, heads * head_dim, device="meta"))
    return memory.keys.numel() + (0 if memory.states is None else memory.states.numel())


def _kept_by_llama(heads: int, head_dim: int, tokens: int) -> int:
    """How many numbers Llama attention keeps of one row."""
    config = LlamaAttentionConfig(heads * head_dim, heads, "alibi")  # turns no pairs, so R may be odd
    layer = _built(lambda g: LlamaAttention(config, g))
    _, cache = layer(torch.empty(1, tokens, config.dim, device="meta"))
    return int(cache.keys.numel() + cache.values.numel())


def _caches(diagonals: Sequence[DiagonalKind], heads: int, head_dim: int, tokens: int) -> Working:
    theirs = _kept_by_llama(heads, head_dim, tokens)
    ours = {diagonal: _kept(heads, head_dim, tokens, diagonal=diagonal) for diagonal in diagonals}
    half = all(2 * kept == theirs for kept in ours.values())
    return working(
        f"K = {heads}, R = {head_dim}, {tokens} tokens; Llama keeps 2 K R = {2 * heads * head_dim} each: {theirs}",
        *(f"CEM, diagonal {diagonal}: {kept}" for diagonal, kept in ours.items()),
        f"half of {theirs} is {half}",
        comes_out=half,
    )


def _cache_without_diagonal() -> Working:
    return _caches(["none"], heads=2, head_dim=2, tokens=3)


def _cache_with_diagonal() -> Working:
    return _caches(["shared", "per-head"], heads=2, head_dim=2, tokens=3)


# --- operations: per token and layer, a multiply and an add counting two, K R = D -------------------


def _llama_flops(D: int, n: Fraction) -> Fraction:
    """Llama attention with n keys attended."""
    return 8 * D * D + 4 * n * D


def _attention_products(
    D: int, K: int, n: Fraction, T: int, diagonal: DiagonalKind, *, values: bool = True
) -> Fraction:
    """The matrix products of CEM attention.

    Args:
        values: whether the diagonal is in the values too, as the gradient asks, or in the scores only, as printed.
    """
    passes = {"none": 0, "shared": 1, "per-head": K}[diagonal] * (2 if values else 1)
    return 2 * D * D + T * (4 * D * D + 4 * n * D + passes * 2 * n * D)


def _attention_flops(D: int, K: int, n: Fraction, T: int, diagonal: DiagonalKind, *, values: bool = True) -> Fraction:
    """CEM attention: the products, and what a diagonal scales and adds up; softmax, norm and bias are left out."""
    d_vectors = {"none": 0, "shared": 1, "per-head": K}[diagonal]
    scores = d_vectors * D + (n * K if d_vectors else 0)
    # a shared diagonal adds up the heads' weights first
    attended = d_vectors * 2 * D + (n * K if diagonal == "shared" else 0)
    return _attention_products(D, K, n, T, diagonal, values=values) + T * (scores + (attended if values else 0))


def _swiglu_flops(D: int, M: int) -> int:
    """Llama's MLP."""
    return 6 * D * M


def _mlp_flops(D: int, M: int, T: int) -> int:
    """A CEM MLP; at T = 0 what lies outside the recursion."""
    return (2 + 4 * T) * D * M


def _runs(module: nn.Module, tokens: int, dim: int) -> int:
    """The matrix-product FLOPs of a module on one row, as PyTorch counts them; nothing is computed."""
    with FlopCounterMode(display=False) as counter:
        module(torch.empty(1, tokens, dim, device="meta"))
    return int(counter.get_total_flops())


def _llama_attention(dim: int, heads: int) -> LlamaAttention:
    return _built(lambda g: LlamaAttention(LlamaAttentionConfig(dim, heads), g))


def _swiglu(dim: int, hidden: int) -> SwiGLU:
    return _built(lambda g: SwiGLU(SwiGLUConfig(dim, hidden), g))


def _cem_attention(dim: int, heads: int, diagonal: DiagonalKind, steps: int) -> CEMAttention:
    return _built(lambda g: CEMAttention(AttentionConfig(dim, heads, diagonal=diagonal, steps=steps), g))


def _cem_mlp(dim: int, hidden: int, steps: int) -> CEMGatedMLP:
    return _built(lambda g: CEMGatedMLP(MLPConfig(dim, hidden, steps=steps), g))


def _products_run() -> Working:
    lines, agree = [], True

    def compare(name: str, run: int, formula: Fraction | int) -> None:
        nonlocal agree
        agree = agree and run == formula
        lines.append(f"{name}: {run:,} run, {int(formula):,} by the formula")

    big = SIZES["86M"]
    for D, K, M, J in ((8, 2, 12, 6), (big.dim, big.heads, big.hidden, CONTEXT)):
        n = Fraction(J)  # PyTorch counts all keys, masked or not
        lines.append(f"D = {D}, K = {K}, M = {M}, J = n = {J}")
        compare("Llama attention", _runs(_llama_attention(D, K), J, D), J * _llama_flops(D, n))
        kinds: tuple[DiagonalKind, ...] = ("none", "shared", "per-head")
        for T in (1, 2):
            for kind in kinds:
                run = _runs(_cem_attention(D, K, kind, T), J, D)
                compare(f"CEM attention, diagonal {kind}, T = {T}", run, J * _attention_products(D, K, n, T, kind))
        compare("Llama MLP", _runs(_swiglu(D, M), J, D), J * _swiglu_flops(D, M))
        for T in (1, 2):
            compare(f"CEM MLP, T = {T}", _runs(_cem_mlp(D, M, T), J, D), J * _mlp_flops(D, M, T))
    return working(*lines, comes_out=agree)


def _ratio(s: Size, T: int, diagonal: DiagonalKind, *, values: bool = True) -> Fraction:
    """CEM attention's operations over Llama's."""
    ours = _attention_flops(s.dim, s.heads, _MEAN_KEYS, T, diagonal, values=values)
    return ours / _llama_flops(s.dim, _MEAN_KEYS)


def _shown(ratio: Fraction, digits: int = 2) -> str:
    return f"{float(ratio):.{digits}f}"


def _costs_less_without_diagonal() -> Working:
    ratios = {name: _ratio(s, 1, "none") for name, s in SIZES.items()}
    return working(
        *(
            f"{name}: (6 D^2 + 4 n D) / (8 D^2 + 4 n D) = {ratio} = {_shown(ratio)}, D = {SIZES[name].dim}, "
            f"n = {_MEAN_KEYS}"
            for name, ratio in ratios.items()
        ),
        comes_out=all(ratio < 1 for ratio in ratios.values()),
    )


def _costs_less_with_few_keys() -> Working:
    cases, cheaper, right = 0, 0, True
    for K, R, keys in itertools.product(range(1, 5), range(1, 7), range(1, 21)):
        D, n = K * R, Fraction(keys)
        bounds: dict[DiagonalKind, bool] = {
            "shared": n * (4 * D + 2 * K) < 2 * D * D - 3 * D,
            "per-head": n * K * (4 * D + 1) < 2 * D * D - 3 * K * D,
        }
        for kind, below in bounds.items():
            less = _attention_flops(D, K, n, 1, kind) < _llama_flops(D, n)
            cases, cheaper, right = cases + 1, cheaper + less, right and less == below
    few = max(Fraction(2 * s.dim**2 - 3 * s.dim, 4 * s.dim + 2 * s.heads) for s in SIZES.values())
    return working(
        f"cheaper in {cheaper} of {cases} cases, those within the condition: {right}",
        f"Table 1's models are cheaper with a shared diagonal if n < {_shown(few)} at most",
        f"the mean n is {_shown(_MEAN_KEYS)}",
        comes_out=right and 0 < cheaper < cases and few < _MEAN_KEYS,
    )


def _costs_more() -> Working:
    s = SIZES["86M"]
    shared, per_head = _ratio(s, 1, "shared"), _ratio(s, 1, "per-head")
    less = shared < 1 or per_head < 1
    return working(
        f"D = {s.dim}, K = {s.heads}, n = {_MEAN_KEYS}",
        f"Llama: 8 D^2 + 4 n D = {int(_llama_flops(s.dim, _MEAN_KEYS)):,}",
        f"shared: 6 D^2 + 4 n D + (D + 2 n D + n K) + (n K + 2 n D + 2 D) = {_shown(shared)} of it",
        f"per head: 6 D^2 + 4 n D + K (D + 2 n D + n) + K (2 n D + 2 D) = {_shown(per_head)} of it",
        f"{_shown(shared)} < 1 or {_shown(per_head)} < 1 is {less}",
        comes_out=less,
    )


def _diagonal_ratios() -> Working:
    lines, fits = [], True
    for name, s in SIZES.items():
        shared, per_head = _ratio(s, 1, "shared"), _ratio(s, 1, "per-head")
        fits = fits and Fraction(12, 10) < shared < Fraction(13, 10) and per_head > 4
        variants: dict[str, tuple[DiagonalKind, bool]] = {
            "none": ("none", True),
            "shared, scores only": ("shared", False),
            "shared": ("shared", True),
            "per head, scores only": ("per-head", False),
            "per head": ("per-head", True),
        }
        ratios = (
            f"{words} {_shown(_ratio(s, 1, kind, values=values))} / {_shown(_ratio(s, 2, kind, values=values))}"
            for words, (kind, values) in variants.items()
        )
        lines.append(f"{name}, T = 1 / T = 2 over Llama: " + "; ".join(ratios))
    return working(*lines, comes_out=fits)


def _mlps_at(steps: int) -> Working:
    lines, equal = [], True
    for name, s in SIZES.items():
        theirs = _runs(_swiglu(s.dim, s.hidden), 1, s.dim)
        ours = _runs(_cem_mlp(s.dim, s.hidden, steps), 1, s.dim)
        equal = equal and ours == theirs
        lines.append(
            f"{name}, one token: CEM {ours:,} = {Fraction(ours, s.dim * s.hidden)} D M, Llama {theirs:,} = "
            f"{Fraction(theirs, s.dim * s.hidden)} D M, ratio {Fraction(ours, theirs)}"
        )
    return working(*lines, f"equal at T = {steps} is {equal}", comes_out=equal)


def _mlp_at_one_step() -> Working:
    return _mlps_at(1)


def _mlp_at_two_steps() -> Working:
    return _mlps_at(2)


def _share_outside() -> Working:
    lines, most = [], False
    for name, s in SIZES.items():
        keys = _attention_flops(s.dim, s.heads, _MEAN_KEYS, 0, "none")
        attention = keys / _attention_flops(s.dim, s.heads, _MEAN_KEYS, 2, "none")
        gate = Fraction(_mlp_flops(s.dim, s.hidden, 0), _mlp_flops(s.dim, s.hidden, 2))
        most = most or attention > Fraction(1, 2) or gate > Fraction(1, 2)
        lines.append(
            f"{name}: attention 2 D^2 / (2 D^2 + 2 (4 D^2 + 4 n D)) = {attention} = {_shown(attention, 3)}, "
            f"MLP 2 D M / (10 D M) = {gate}"
        )
    return working(*lines, f"more than half lies outside, in attention or the MLP, is {most}", comes_out=most)


# --- parameters -----------------------------------------------------------------------------------


def _parameters(module: nn.Module, *, gains: bool = True) -> int:
    return sum(p.numel() for name, p in module.named_parameters() if gains or not name.startswith("norm."))


def _model(config: LanguageModelConfig) -> int:
    return _parameters(_built(lambda g: LanguageModel(config, g)))


def _llama_counts() -> Working:
    lines, right = [], True
    for name, s in SIZES.items():
        built = _model(llama(name))
        layer = 4 * s.dim**2 + 3 * s.dim * s.hidden + 2 * s.dim
        formula = 2 * VOCABULARY * s.dim + s.layers * layer + s.dim
        right = right and built == formula and f"{built // 10**6}M" == name
        lines.append(
            f"{name}: D = {s.dim}, L = {s.layers}, M = {s.hidden}: built {built:,}, formula {formula:,}, "
            f"truncated {built // 10**6}M, rounded {round(Fraction(built, 10**6))}M"
        )
    return working(*lines, comes_out=right)


def _full_cem_counts() -> Working:
    lines, right = [], True
    for name, s in SIZES.items():
        built, theirs = _model(full_cem(name)), _model(llama(name))
        attention = 2 * s.dim**2 + s.dim + 9 * s.heads * s.dim
        mlp = 2 * s.dim * s.hidden + 33 * s.dim
        formula = 2 * VOCABULARY * s.dim + s.layers * (attention + mlp + 2 * s.dim) + s.dim
        ratio = Fraction(built, theirs)
        right = right and built == formula and Fraction(75, 100) < ratio < Fraction(82, 100)
        lines.append(f"{name}: built {built:,}, formula {formula:,}; over Llama's {theirs:,} = {_shown(ratio, 3)}")
    return working(*lines, comes_out=right)


def _parts(config: BlockConfig) -> tuple[int, int]:
    """Parameters of a block's attention and of its MLP, without gains."""
    block = _built(lambda g: Block(config, g))
    return _parameters(block.attention, gains=False), _parameters(block.mlp, gains=False)


def _tied_only(s: Size) -> BlockConfig:
    """CEM without diagonal, preconditioners and learned positions."""
    return BlockConfig(AttentionConfig(s.dim, s.heads), MLPConfig(s.dim, s.hidden))


def _half_the_attention() -> Working:
    lines, right = [], True
    for name, s in SIZES.items():
        theirs, _ = _parts(llama(name).block)
        tied, _ = _parts(_tied_only(s))
        full, _ = _parts(full_cem(name).block)
        right = right and 2 * tied == theirs and Fraction(1, 2) < Fraction(full, theirs) < Fraction(109, 200)
        lines.append(
            f"{name}: Llama {theirs:,}; tied only {tied:,} = {Fraction(tied, theirs)} of it; "
            f"full CEM {full:,} = {_shown(Fraction(full, theirs), 3)} of it"
        )
    return working(*lines, comes_out=right)


def _two_thirds_of_the_mlp() -> Working:
    lines, right = [], True
    for name, s in SIZES.items():
        _, theirs = _parts(llama(name).block)
        _, tied = _parts(_tied_only(s))
        _, full = _parts(full_cem(name).block)
        right = right and 3 * tied == 2 * theirs and Fraction(2, 3) < Fraction(full, theirs) < Fraction(202, 300)
        lines.append(
            f"{name}: Llama {theirs:,}; tied only {tied:,} = {Fraction(tied, theirs)} of it; "
            f"full CEM {full:,} = {_shown(Fraction(full, theirs), 3)} of it"
        )
    return working(*lines, comes_out=right)


def _matched_mlp() -> Working:
    lines, right = [], True
    for name, s in SIZES.items():
        wider = replace(s, hidden=s.hidden * 3 // 2)
        _, theirs = _parts(llama(name).block)
        _, ours = _parts(_tied_only(wider))
        right = right and ours == theirs
        lines.append(f"{name}: M = {s.hidden} -> {wider.hidden}; CEM {ours:,}, Llama {theirs:,}")
    return working(*lines, comes_out=right)


def _depth_is_free() -> Working:
    lines, right = [], True
    for name in SIZES:
        counts = {T: _model(full_cem(name, steps=T)) for T in (1, 2, 4, 8)}
        right = right and len(set(counts.values())) == 1
        lines.append(f"{name}: " + ", ".join(f"T = {T}: {count:,}" for T, count in counts.items()))
    return working(*lines, comes_out=right)


def _gains_and_biases() -> Working:
    lines, right = [], True
    for name, s in SIZES.items():
        config = full_cem(name)
        attention, mlp = config.block.attention, config.block.mlp
        assert isinstance(attention, AttentionConfig)
        assert isinstance(mlp, MLPConfig)
        bare = BlockConfig(replace(attention, norm="none"), replace(mlp, norm="none"))
        biased = BlockConfig(replace(attention, position="self-cross"), mlp)
        gains = _model(config) - _model(replace(config, block=bare))
        biases = _model(replace(config, block=biased)) - _model(config)
        right = right and gains == 2 * s.layers * s.dim and biases == 2 * s.layers * s.heads
        lines.append(
            f"{name}: gains {gains:,}, 2 L D = {2 * s.layers * s.dim:,}; "
            f"biases {biases}, 2 L K = {2 * s.layers * s.heads}"
        )
    return working(*lines, comes_out=right)


# --- figures that do not fit ----------------------------------------------------------------------


def _one_third_is_not() -> Working:
    lines, nearer = [], False
    for name in SIZES:
        _, theirs = _parts(llama(name).block)
        _, ours = _parts(full_cem(name).block)
        ratio = Fraction(ours, theirs)
        to_one, to_two = abs(ratio - Fraction(1, 3)), abs(ratio - Fraction(2, 3))
        nearer = nearer or to_one < to_two
        lines.append(
            f"{name}: {ours:,} / {theirs:,} = {_shown(ratio, 3)}; {_shown(to_one, 3)} from 1/3, {_shown(to_two, 3)} "
            "from 2/3"
        )
    return working(*lines, f"nearer to 1/3 is {nearer}", comes_out=nearer)


def _batch_size() -> Working:
    per_gpu, accumulation, gpus, table = 8, 4, 8, 128
    product = per_gpu * accumulation * gpus
    return working(
        f"the paper's figures: {per_gpu} per GPU, {accumulation} accumulation steps, {gpus} GPUs; {table} in Table 2",
        f"{per_gpu} * {accumulation} * {gpus} = {product}; {product} = {table} is {product == table}",
        comes_out=product == table,
    )


def _width_of_A(heads: int, head_dim: int) -> int:
    """D_h of A_k in R^(D_h x D_h)."""
    layer = _built(lambda g: CEMAttention(AttentionConfig(heads * head_dim, heads), g))
    rows, columns = (layer.W_Q[0].mT @ layer.W_K[0]).shape
    assert rows == columns
    return int(rows)


def _one_symbol_two_dimensions() -> Working:
    lines, same = [], True
    for name, s in SIZES.items():
        width, head_dim = _width_of_A(s.heads, s.dim // s.heads), s.dim // s.heads
        same = same and width == head_dim
        lines.append(
            f"{name}: A_k = W_Q^T W_K is {width} x {width}, so D_h = {width}; one of {s.heads} heads has dimension "
            f"{head_dim}, and scores scaled by the one are sqrt({Fraction(width, head_dim)}) times those by the other"
        )
    return working(*lines, f"one D_h for both is {same}", comes_out=same)
