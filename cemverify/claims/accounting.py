"""Claims about operations, memory and parameters, and inconsistent figures (docs/mathematics.md §14, §15, §17)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any, TypeVar

import sympy
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, DiagonalKind, MLPConfig
from cemverify.cem.llama import LlamaAttention, LlamaAttentionConfig, SwiGLU, SwiGLUConfig
from cemverify.cem.models import Block, BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.cem.presets import CONTEXT, SIZES, VOCABULARY, Size, full_cem, llama
from cemverify.claims.arguments import Figures, Instance, Lemma, Sample, Symbols, Working, properties, working
from cemverify.claims.base import Claim, draft, ours, slip
from cemverify.claims.exact import simplified

_Module = TypeVar("_Module", bound=nn.Module)

# keys that a causal token attends to, averaged over a full context
_MEAN_KEYS = Fraction(CONTEXT + 1, 2)
_KINDS: tuple[DiagonalKind, ...] = ("none", "shared", "per-head")


def claims() -> Iterator[Claim]:
    """Every claim about the costs and sizes of layers, each with its arguments."""
    yield from _diagonal_claims()
    yield from _operation_claims()
    yield from _parameter_claims()
    yield from _figure_claims()


def _diagonal_claims() -> Iterator[Claim]:
    yield Claim(
        id="14-value-path",
        source=ours("Sec. 2.3"),
        rests=("finding 5", "finding 10", "gradient/attention/diagonal-shared"),
        statement="A diagonal in A_k adds the attended memory itself to the update, weighted by the diagonal.",
        formula="-grad eps = sum_k W_Q^T sum_j a_kij W_K h_j + sum_k d_k * sum_j a_kij h_j",
        finding=(
            "beta_kj = W_Q^T W_K h_j + d_k * h_j, and -grad eps = sum a beta. If all heads share d, the second sum "
            "is d * sum_j (sum_k a_kij) h_j: the weights are added up before they multiply h."
        ),
        advice="shared: `d * (a.sum(heads) @ h)`, one product more; per head: `(d * (a @ h)).sum(heads)`, K more",
        holds_for=partial(_value_path, factor=1),
        arguments=(
            Symbols("two heads, two tokens, D = 2, R = 1, all quantities letters"),
            properties("gradient/attention/diagonal-shared", "gradient/attention/diagonal-per-head"),
        ),
    )
    yield Claim(
        id="14-diagonal-rank",
        source=draft("Sec. 2.3", "captures key-query interactions that low-rank matrices alone cannot represent"),
        statement="A diagonal gives a head interactions that no W_Q^T W_K of its rank has.",
        formula="some diag(d) + W_Q^T W_K has a rank above R, the head dimension",
        condition="the head dimension R is below the model's D; this is about one head, as all together have K R = D",
        within=lambda case: case[1] < case[0],
        finding=(
            "diag(1 ... 1) has rank D and W_Q^T W_K at most R. At R = D every matrix is of the form W_Q^T W_K, and "
            "the diagonal only adds a parameterisation."
        ),
        advice="a shared diagonal costs D parameters; 14-diagonal-cost says what its gradient costs",
        holds_for=partial(_exceeds_the_rank, diagonal=1),
        arguments=(
            Sample("D up to 9, R below it", lambda: itertools.product(range(1, 10), range(1, 10))),
            Instance("D = R = 2", (2, 2)),
        ),
    )


def _operation_claims() -> Iterator[Claim]:
    yield Claim(
        id="14-operations",
        source=ours("the operations of a layer"),
        rests=("finding 9", "finding 10"),
        statement="The matrix products that the layers run are those of the formulas used here.",
        formula=(
            "per token and layer, a multiply and an add counting two, n keys attended: Llama 8 D^2 + 4 n D, CEM "
            "2 D^2 + T (4 D^2 + 4 n D [+ 4 n D shared, + 4 n K D per-head diagonal]); MLP 6 D M and (2 + 4 T) D M"
        ),
        finding=(
            "K R = D. Keys are projected once; every step projects queries and outputs, and computes scores and "
            "attended keys. A diagonal adds one product of width D to the scores and one to the values, per head or "
            "once."
        ),
        advice="count with PyTorch's FlopCounterMode; 6 per parameter and token is wrong for tied, recursive layers",
        holds_for=partial(_products_run, off=0),
        arguments=(Figures("PyTorch's counter at the 86M size, T = 1 and 2", "86M"),),
    )
    yield Claim(
        id="14-diagonal-cost",
        source=ours("Sec. 2.3"),
        rests=("finding 10",),
        statement=(
            "With its exact gradient, a shared diagonal makes attention at T = 1 between 1.2 and 1.3 times as "
            "costly as Llama's, and one per head more than four times."
        ),
        formula="1.2 < shared / Llama < 1.3,  per head / Llama > 4, at the model sizes of Table 1 and J = 2048",
        finding=(
            "A shared diagonal adds two products of width D, and one per head 2 K, where plain attention has two "
            "for all heads together. T = 2 about doubles both."
        ),
        advice="share the diagonal over the heads: `d * (a.sum(heads) @ h)` is one product, not K",
        holds_for=partial(_diagonal_ratios, values=True),
        arguments=(Figures("all ratios from the formulas, T = 1 and T = 2"),),
    )
    yield Claim(
        id="14-widened-mlp-cost",
        source=draft("Fig. 2b", "at the cost of additional FLOPs"),
        statement=(
            "A CEM MLP widened to Llama's number of parameters costs more operations: 1.5 times as many at T = 1."
        ),
        formula="6 D (3 M / 2) / (6 D M) = 3/2",
        finding=(
            "Two matrices of 3/2 the width have the parameters of three, but T = 1 still takes three products: by W, "
            "V and V^T."
        ),
        advice="compare the widened MLP at equal FLOPs, too",
        holds_for=partial(_mlp_ratio_is, expected=Fraction(3, 2)),
        arguments=(Figures("the products that run at the sizes of Table 1"),),
    )
    yield Claim(
        id="17-outside-recursion",
        source=draft("text on recursion", "most computation performed outside the recursion"),
        statement="Most of a recursive layer's computation is performed once, outside the recursion.",
        formula="(FLOPs outside the recursion) / (all FLOPs) > 1/2",
        finding=(
            "Most of it is inside. Outside are the keys, 2 D^2 of 2 D^2 + T (4 D^2 + 4 n D), and the MLP's gate, 2 "
            "D M of (2 + 4 T) D M: at T = 2, 9 to 10 % of attention and 20 % of the MLP. Preconditioners merged "
            "into W_O are computed once per forward pass, for all tokens together."
        ),
        advice="budget `T * (4*D*D + 4*n*D)` for attention: a second step costs nearly a second layer",
        holds_for=partial(_share_outside_exceeds, share=Fraction(1, 2)),
        arguments=(Figures(f"the model sizes of Table 1 at T = 2, J = {CONTEXT}, causal mean"),),
    )


def _parameter_claims() -> Iterator[Claim]:
    yield Claim(
        id="15-llama-counts",
        source=draft("Table 1", "86M, 108M, 134M, 162M", "formula"),
        statement="The Llama models of Table 1 have 86, 108, 134 and 162 million parameters.",
        formula="floor((2 V D + L (4 D^2 + 3 D M + 2 D) + D) / 10^6) = 86, 108, 134, 162",
        finding=(
            "Untied embeddings of 32000 tokens, two gains per block and one at the end, no biases. The last model "
            "has 162.8 million: Table 1 truncates."
        ),
        advice="`cemverify.cem.presets.llama(name)` builds them",
        holds_for=partial(_llama_counts, embeddings=2),
        arguments=(Figures("the models built, and the formula"),),
    )
    yield Claim(
        id="15-half-attention",
        source=draft("Eq. 5", "W^K = W^V, W^Q = W^O", "formula"),
        statement=(
            "CEM attention has half the parameters of Llama's, up to 9 % more with diagonal and preconditioners."
        ),
        formula="2 D^2 = 4 D^2 / 2;  1/2 < (2 D^2 + D + 9 K D) / (4 D^2) < 1.09 / 2",
        finding="Tying W_V = W_K and W_O = W_Q halves them exactly; what full CEM adds is of order K D.",
        advice="if per-head preconditioners are merged into W_O, three matrices are kept instead",
        holds_for=partial(_half_the_attention, share=Fraction(1, 2)),
        arguments=(Figures("the attention layers built, tied only and full CEM"),),
    )
    yield Claim(
        id="15-two-thirds-mlp",
        source=draft("Eq. 11; text on Fig. 3", "two-thirds"),
        statement="A CEM MLP has two thirds of the parameters of Llama's, up to 1 % more with its preconditioner.",
        formula="2 D M = (2/3) 3 D M;  2/3 < (2 D M + 33 D) / (3 D M) < 1.01 * 2/3",
        finding="Llama's gate and down projection become one matrix, so two of three are left.",
        advice="at 3/2 of the width it has as many (15-matched-mlp)",
        holds_for=partial(_share_of_the_mlp, share=Fraction(2, 3)),
        arguments=(Figures("the MLPs built, tied only and full CEM"),),
    )
    yield Claim(
        id="17-one-third-mlp",
        source=slip("Fig. 3, caption", "one-third the MLP parameters"),
        statement="CEM MLPs have one third of the parameters of Llama's MLPs.",
        formula="parameters of the CEM MLP / parameters of Llama's = 1/3, up to 1 %",
        finding="They have one third *fewer*. The paper's text says two thirds, which is right.",
        advice="read two thirds in the caption",
        holds_for=partial(_share_of_the_mlp, share=Fraction(1, 3)),
        arguments=(Figures("the model sizes of Table 1"),),
    )
    yield Claim(
        id="15-matched-mlp",
        source=draft("Sec. 4.1, Fig. 2b", "increasing the hidden dimension to match parameter count"),
        statement="A CEM MLP with 3/2 of the hidden units has exactly the parameters of Llama's.",
        formula="2 D (3 M / 2) = 3 D M",
        finding="Two projections instead of three; all M of Table 1 are even. A preconditioner comes on top.",
        advice="`hidden = 3 * hidden // 2`",
        holds_for=partial(_matched_mlp, width=Fraction(3, 2)),
        arguments=(Figures("the MLPs built without preconditioner"),),
    )
    yield Claim(
        id="15-preconditioner-overhead",
        source=draft("Sec. 2, on preconditioners", "negligible"),
        statement="The parameters that preconditioners add are negligible, taken here as at most 2 %.",
        formula="K (D + 2 * 4 D) of 2 D^2 + D + 9 K D; with the MLP's 33 D, of the whole model",
        condition=(
            "they are counted against the model (0.8 to 1.4 %), not against the attention that has them (5 to 8 %)"
        ),
        within=lambda of: of == "model",
        finding="The small size of CEM attention is its point.",
        advice="count them when you compare attention layers at equal parameters",
        holds_for=partial(_overhead, at_most=Fraction(1, 50)),
        arguments=(
            Figures("of the models of Table 1", "model"),
            Instance("of their attention", "attention"),
        ),
    )


def _figure_claims() -> Iterator[Claim]:
    yield Claim(
        id="17-batch-size",
        source=slip(
            "Table 2; App. C.5 (8 GPUs)", "Batch size (per GPU) 8 Gradient accumulation 4 Effective batch size 128"
        ),
        statement="The effective batch of Table 2 is that of App. C.5.",
        formula="8 sequences per GPU * 4 accumulation steps * 8 GPUs = 128",
        finding="The product is 256. Which of the two was run cannot be told from the paper.",
        advice="try 128 and 256 before you call a replication failed: the best rate depends on the batch",
        holds_for=_batch_is,
        arguments=(Figures("the product", (8, 4, 8, 128)),),
    )
    yield Claim(
        id="17-gpu-hours",
        source=draft("App. C.5", "8×2 GPU-hours, while the largest models we tested"),
        statement="The GPU-hours of App. C.5 fit the model sizes that they are given for.",
        formula="hours(162M) / hours(86M) within a quarter of FLOPs(162M) / FLOPs(86M), 20 tokens to a parameter",
        finding=(
            "If both are Llama's, the larger takes nine times the hours for 3.6 times the Chinchilla FLOPs: a "
            "utilisation of 5 % for the smaller size and 2 % for the larger. But the paper does not say which "
            "variant the hours are for, and one with two steps and preconditioners costs more than Llama."
        ),
        advice="do not plan from these hours; time a hundred steps of your own",
        arguments=(Lemma("if both are Llama's and see 20 tokens for each parameter", _hours_of_llamas),),
    )
    yield Claim(
        id="17-all-hours",
        source=draft(
            "App. C.5",
            "End-to-end reproduction of all results in this paper would therefore require on the order of 10,000 "
            "GPU-hours.",
            "sentence",
        ),
        statement="All results of the paper take on the order of 10,000 GPU-hours.",
        formula="sum over all trainings of their GPU-hours ~ 10^4",
        finding="The paper does not list the trainings, so they cannot be counted.",
        advice="plan from your own list of trainings",
        arguments=(Lemma("how many trainings that would be", _trainings_in_all),),
    )


def _at_every_size(judge: Callable[..., tuple[str, bool]]) -> Callable[..., Working]:
    """The predicate for a statement about all sizes; `judge` gives a line and the truth at one size."""

    def over(_: Any, **how: Any) -> Working:
        lines, truths = zip(*(judge(name, size, **how) for name, size in SIZES.items()), strict=True)
        return working(*lines, comes_out=all(truths))

    return over


def _built(build: Callable[[torch.Generator], _Module]) -> _Module:
    """A module with shapes but without numbers."""
    with torch.device("meta"):
        return build(torch.Generator("cpu"))


# --- the diagonal ---------------------------------------------------------------------------------


def _vector(name: str) -> sympy.Matrix:
    return sympy.Matrix(sympy.symbols(f"{name}_1:3"))


def _value_path(_: Any, *, factor: int) -> Working:
    tau = sympy.symbols("tau", positive=True)
    x, h = _vector("x"), [_vector("h_1"), _vector("h_2")]
    W_Q, W_K = [_vector(f"q_{k}").T for k in (1, 2)], [_vector(f"k_{k}").T for k in (1, 2)]
    shared, own = _vector("d"), [_vector("d_1"), _vector("d_2")]

    def low_rank_and_weights(diagonals: Sequence[sympy.Matrix]) -> tuple[sympy.Matrix, list[list[sympy.Expr]]]:
        """-grad eps minus the part from W_Q^T W_K, and the weights a_kj."""
        rest, weights = sympy.zeros(2, 1), []
        for Q, K, d in zip(W_Q, W_K, diagonals, strict=True):
            powers = [sympy.exp(x.dot((Q.T * K + sympy.diag(*d)) * h_j) / tau) for h_j in h]
            a = [p / sum(powers) for p in powers]
            energy = -tau * sympy.log(sum(powers))
            rest += -sympy.Matrix([energy]).jacobian(x).T - Q.T * (a[0] * K * h[0] + a[1] * K * h[1])
            weights.append(a)
        return rest, weights

    rest, a = low_rank_and_weights([shared, shared])
    summed = (a[0][0] + a[1][0]) * h[0] + (a[0][1] + a[1][1]) * h[1]
    off_shared, shares = simplified(*(rest - factor * shared.multiply_elementwise(summed)))
    rest, a = low_rank_and_weights(own)
    per_head = [d.multiply_elementwise(w[0] * h[0] + w[1] * h[1]) for d, w in zip(own, a, strict=True)]
    off_per_head, separates = simplified(*(rest - factor * (per_head[0] + per_head[1])))
    return working(
        "eps = -tau sum_k log sum_j exp(x . (W_Q,k^T W_K,k + diag(d_k)) h_j / tau), differentiated",
        f"shared: -grad eps - sum_k W_Q^T sum_j a W_K h_j - d * sum_j (a_1j + a_2j) h_j = {off_shared}",
        f"per head: -grad eps - sum_k W_Q^T sum_j a W_K h_j - sum_k d_k * sum_j a_kj h_j = {off_per_head}",
        comes_out=shares and separates,
    )


def _exceeds_the_rank(case: tuple[int, int], *, diagonal: int) -> Working:
    D, R = case
    with_it = sympy.eye(D) * diagonal
    return working(
        f"D = {D}, R = {R}: diag({diagonal} ... {diagonal}) + 0 has rank {with_it.rank()}; every W_Q^T W_K at "
        f"most {R}",
        comes_out=with_it.rank() > R,
    )


# --- operations: per token and layer, a multiply and an add counting two, K R = D -------------------


def _llama_flops(D: int, n: Fraction) -> Fraction:
    """Llama attention with n keys attended."""
    return 8 * D * D + 4 * n * D


def _attention_products(
    D: int, K: int, n: Fraction, T: int, diagonal: DiagonalKind, *, values: bool = True
) -> Fraction:
    """The matrix products of CEM attention; at T = 0 those outside the recursion.

    Args:
        values: whether the diagonal is in the values too, as in the gradient, or only in the scores, as printed.
    """
    passes = {"none": 0, "shared": 1, "per-head": K}[diagonal] * (2 if values else 1)
    return 2 * D * D + T * (4 * D * D + 4 * n * D + passes * 2 * n * D)


def _mlp_flops(D: int, M: int, T: int) -> int:
    """A CEM MLP; at T = 0 what is outside the recursion."""
    return (2 + 4 * T) * D * M


def _runs(layer: Callable[[Any, torch.Generator], nn.Module], config: Any, tokens: int = 1) -> int:
    """The matrix-product FLOPs of a layer on one row, as PyTorch counts them; nothing is computed."""
    module = _built(partial(layer, config))
    with FlopCounterMode(display=False) as counter:
        module(torch.empty(1, tokens, config.dim, device="meta"))
    return int(counter.get_total_flops())


def _products_run(name: str, *, off: int) -> Working:
    D, K, M, J = SIZES[name].dim, SIZES[name].heads, SIZES[name].hidden, CONTEXT
    n = Fraction(J)  # PyTorch counts all keys, masked or not
    counted: dict[str, tuple[int, Fraction | int]] = {
        "Llama attention": (_runs(LlamaAttention, LlamaAttentionConfig(D, K), J), _llama_flops(D, n)),
        **{
            f"CEM attention, diagonal {kind}, T = {T}": (
                _runs(CEMAttention, AttentionConfig(D, K, diagonal=kind, steps=T), J),
                _attention_products(D, K, n, T, kind),
            )
            for T, kind in itertools.product((1, 2), _KINDS)
        },
        "Llama MLP": (_runs(SwiGLU, SwiGLUConfig(D, M), J), 6 * D * M),
        **{
            f"CEM MLP, T = {T}": (_runs(CEMGatedMLP, MLPConfig(D, M, steps=T), J), _mlp_flops(D, M, T))
            for T in (1, 2)
        },
    }
    return working(
        f"D = {D}, K = {K}, M = {M}, J = n = {J}",
        *(f"{of}: {run:,} run, {int(J * each + off):,} by the formula" for of, (run, each) in counted.items()),
        comes_out=all(run == J * each + off for run, each in counted.values()),
    )


def _show(ratio: Fraction, digits: int = 2) -> str:
    return f"{float(ratio):.{digits}f}"


@_at_every_size
def _diagonal_ratios(name: str, s: Size, *, values: bool) -> tuple[str, bool]:
    def ratio(kind: DiagonalKind, T: int) -> Fraction:
        n = _MEAN_KEYS
        return _attention_products(s.dim, s.heads, n, T, kind, values=values) / _llama_flops(s.dim, n)

    ratios = "; ".join(f"{kind} {_show(ratio(kind, 1))} / {_show(ratio(kind, 2))}" for kind in _KINDS)
    right = Fraction(12, 10) < ratio("shared", 1) < Fraction(13, 10) and ratio("per-head", 1) > 4
    return f"{name}, T = 1 / T = 2 over Llama: {ratios}", right


@_at_every_size
def _mlp_ratio_is(name: str, s: Size, *, expected: Fraction) -> tuple[str, bool]:
    theirs, wider = _runs(SwiGLU, SwiGLUConfig(s.dim, s.hidden)), 3 * s.hidden // 2
    run = _runs(CEMGatedMLP, MLPConfig(s.dim, wider))
    ratio = Fraction(run, theirs)
    return f"{name}, one token, M' = {wider}, T = 1: CEM {run:,}, Llama {theirs:,}, ratio {ratio}", ratio == expected


@_at_every_size
def _share_outside_exceeds(name: str, s: Size, *, share: Fraction) -> tuple[str, bool]:
    keys, whole = (_attention_products(s.dim, s.heads, _MEAN_KEYS, T, "none") for T in (0, 2))
    attention, gate = keys / whole, Fraction(_mlp_flops(s.dim, s.hidden, 0), _mlp_flops(s.dim, s.hidden, 2))
    line = f"{name}: attention 2 D^2 / (10 D^2 + 8 n D) = {_show(attention, 3)}, MLP 2 D M / (10 D M) = {gate}"
    return line, attention > share and gate > share


# --- parameters -----------------------------------------------------------------------------------


def _parameters(module: nn.Module, *, gains: bool = True) -> int:
    return sum(p.numel() for name, p in module.named_parameters() if gains or not name.startswith("norm."))


def _model(config: LanguageModelConfig) -> int:
    return _parameters(_built(lambda g: LanguageModel(config, g)))


@_at_every_size
def _llama_counts(name: str, s: Size, *, embeddings: int) -> tuple[str, bool]:
    built = _model(llama(name))
    layer = 4 * s.dim**2 + 3 * s.dim * s.hidden + 2 * s.dim
    formula = embeddings * VOCABULARY * s.dim + s.layers * layer + s.dim
    line = (
        f"{name}: D = {s.dim}, L = {s.layers}, M = {s.hidden}: built {built:,}, formula {formula:,}, "
        f"truncated {formula // 10**6}M, rounded {round(Fraction(formula, 10**6))}M"
    )
    return line, built == formula and f"{formula // 10**6}M" == name


def _parts(config: BlockConfig) -> tuple[int, int]:
    """Parameters of a block's attention and of its MLP, without gains."""
    block = _built(lambda g: Block(config, g))
    return _parameters(block.attention, gains=False), _parameters(block.mlp, gains=False)


def _tied_only(s: Size) -> BlockConfig:
    """CEM with no diagonal, preconditioners or learned positions."""
    return BlockConfig(AttentionConfig(s.dim, s.heads), MLPConfig(s.dim, s.hidden))


def _tied_and_full(name: str, part: int, share: Fraction, most: Fraction) -> tuple[str, bool]:
    """The share of the parameters of one part of Llama's block: of a tied layer, and of full CEM, a little more."""
    theirs, tied, full = (
        _parts(block)[part] for block in (llama(name).block, _tied_only(SIZES[name]), full_cem(name).block)
    )
    line = (
        f"{name}: Llama {theirs:,}; tied only {tied:,} = {Fraction(tied, theirs)} of it; "
        f"full CEM {full:,} = {_show(Fraction(full, theirs), 3)} of it"
    )
    return line, tied == share * theirs and share < Fraction(full, theirs) < share * most


@_at_every_size
def _half_the_attention(name: str, _: Size, *, share: Fraction) -> tuple[str, bool]:
    return _tied_and_full(name, 0, share, Fraction(109, 100))


@_at_every_size
def _share_of_the_mlp(name: str, s: Size, *, share: Fraction) -> tuple[str, bool]:
    line, right = _tied_and_full(name, 1, share, Fraction(101, 100))
    return f"{line}; {share} of it: {_parts(_tied_only(s))[1] == share * _parts(llama(name).block)[1]}", right


@_at_every_size
def _matched_mlp(name: str, s: Size, *, width: Fraction) -> tuple[str, bool]:
    wider = replace(s, hidden=int(s.hidden * width))
    theirs, count = (_parts(block)[1] for block in (llama(name).block, _tied_only(wider)))
    return f"{name}: M = {s.hidden} -> {wider.hidden}; CEM {count:,}, Llama {theirs:,}", count == theirs


def _overhead(of: str, *, at_most: Fraction) -> Working:
    return _at_every_size(partial(_added, of))(None, at_most=at_most)


def _added(of: str, name: str, s: Size, *, at_most: Fraction) -> tuple[str, bool]:
    """What preconditioners add to the model or to its attention: full CEM minus the same without them."""
    config = full_cem(name).block
    attention, mlp = config.attention, config.mlp
    assert isinstance(attention, AttentionConfig)
    assert isinstance(mlp, MLPConfig)
    plain = AttentionConfig(attention.dim, attention.heads).preconditioner
    bare = BlockConfig(replace(attention, preconditioner=plain), replace(mlp, preconditioner=plain))
    (attention_full, mlp_full), (attention_bare, mlp_bare) = _parts(config), _parts(bare)
    added, whole = attention_full - attention_bare, attention_full
    if of == "model":
        added, whole = s.layers * (added + mlp_full - mlp_bare), _model(full_cem(name))
    share = Fraction(added, whole)
    return f"{name}: {added:,} of the {whole:,} of the {of}, {float(share):.2%}", share <= at_most


# --- figures that do not fit ----------------------------------------------------------------------


def _batch_is(case: tuple[int, int, int, int]) -> Working:
    per_gpu, accumulation, gpus, table = case
    product = per_gpu * accumulation * gpus
    return working(
        f"{per_gpu} * {accumulation} * {gpus} = {product}; {product} = {table} is {product == table}",
        comes_out=product == table,
    )


def _hours_of_llamas() -> Working:
    """Chinchilla's FLOPs are 6 N (20 N); the hours are 8 * 2 and 8 * 18, on GPUs of 312 bfloat16 TFLOPs a second."""
    lines, utilisations = [], []
    for name, hours in (("86M", 8 * 2), ("162M", 8 * 18)):
        parameters = _model(llama(name))
        utilisation = Fraction(6 * 20 * parameters**2, hours * 3600 * 312 * 10**12)
        utilisations.append(utilisation)
        lines.append(
            f"{name}: {parameters:,} parameters, 6 N (20 N) FLOPs in {hours} GPU-hours of 312 TFLOP/s are "
            f"{_show(100 * utilisation)} % of them"
        )
    ratio = utilisations[0] / utilisations[1]
    return working(*lines, f"these differ by a factor of {_show(ratio)}", comes_out=ratio > Fraction(5, 4))


def _trainings_in_all() -> Working:
    most, fewest = (Fraction(10_000, hours) for hours in (8 * 2, 8 * 18))
    return working(
        f"10,000 GPU-hours: {float(most):.0f} trainings of the smallest model, {float(fewest):.0f} of the largest",
        comes_out=most > fewest > 1,
    )
