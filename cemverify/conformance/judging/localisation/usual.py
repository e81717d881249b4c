"""Attention with common mistakes: is the answer that of such a layer?"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial

import torch
from torch import Tensor

from cemverify.cem.layers import AttentionConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.conformance.judging.localisation.bench import Bench, WrongPart
from cemverify.conformance.questions.cases import Case

_PLACES = ("queries", "keys", "values", "outputs")
_RIGHT = ("W_Q", "W_K", "W_K", "W_Q")
_LLAMAS = "the values are not rotated, as in Llama; then the update is not the gradient of an energy"
_PAIRS = "it pairs features 2r and 2r + 1; the contract pairs r and r + R/2"


class _Placed(Plain):
    """Attention with separate weights, (K, R, D), at each of the four places."""

    def queries(self, x: Tensor, rows: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().queries(x, rows, {**w, "W_Q": w["queries"]}, c)

    def keys(self, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:
        return super().keys(h, {**w, "W_K": w["keys"]}, c)

    def values(self, keys: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return super().keys(h, {**w, "W_K": w["values"]}, c)

    def output(self, w: Weights) -> Tensor:
        return w["outputs"]


class _OwnHidden(Plain):
    def hidden(self, i: Tensor, j: Tensor) -> Tensor:
        return j >= i


class _OutputStays(Plain):
    def unrotate(self, attended: Tensor, rows: Tensor, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return attended


class _Unrotated(_OutputStays):
    def values(self, keys: Tensor, h: Tensor, w: Weights, c: AttentionConfig) -> Tensor:  # noqa: ARG002
        return torch.einsum("bjd,krd->bkjr", h, w["W_K"])


class _Neighbours(Plain):
    def rotate(self, x: Tensor, rows: Tensor, c: AttentionConfig, sign: float) -> Tensor:
        turned = super().rotate(torch.cat((x[..., ::2], x[..., 1::2]), -1), rows, c, sign)
        return torch.stack(turned.chunk(2, -1), -1).flatten(-2)


class _UnrotatedNeighbours(_Unrotated, _Neighbours):
    pass


_ROTARY: Mapping[Plain, tuple[str, str]] = {
    _Unrotated(): ("rotary, value path", f"{_LLAMAS} (docs/mathematics.md §13)"),
    _OutputStays(): ("rotary, value path", "what is read is not rotated back"),
    _Neighbours(): ("rotary, pairs", _PAIRS),
    _UnrotatedNeighbours(): ("rotary, value path", f"{_LLAMAS} (docs/mathematics.md §13). And {_PAIRS}"),
}


def usual_rotary(bench: Bench, cases: Sequence[Case]) -> WrongPart | None:
    """Whether another use of rotary positions explains every answer."""
    answers = _answers(bench, cases)
    fits = (part for layer, part in _ROTARY.items() if _fit(bench, answers, layer, lambda case: case.weights))
    return next((WrongPart(*part) for part in fits), None)


def usual_weights(bench: Bench, cases: Sequence[Case]) -> WrongPart | None:
    """Whether exchanged weights, or rows of heads in another order, explain every answer."""
    answers, layer = _answers(bench, cases), _Placed()
    for part, placed in (*_exchanged(), *_LAYOUTS):
        if part.name == "output projection" and bench.offers("start"):
            continue  # single rows of W_Q show more about it
        if _fit(bench, answers, layer, partial(_at_places, placed)):
            return part
    return None


def hides_its_own_key(bench: Bench, cases: Sequence[Case]) -> WrongPart | None:
    """Whether a mask hides each token's own key: the first answer is undefined, the others are those of that mask."""
    if all(bench.got(case) is None for case in cases):
        answers = [(case, bench.undefined(case)) for case in cases]
        if _fit(bench, answers, _OwnHidden(), lambda case: case.weights):
            return WrongPart("mask", "token 0 reads nothing: the mask hides its own key")
    return None


def _answers(bench: Bench, cases: Sequence[Case]) -> list[tuple[Case, Tensor | None]]:
    return [(case, bench.got(case)) for case in map(bench.rounded, cases)]


def _fit(
    bench: Bench, answers: Sequence[tuple[Case, Tensor | None]], layer: Plain, weights: Callable[[Case], Weights]
) -> bool:
    """Whether every answer (B, J, D) is that of a layer with these weights; NaN where that has NaN."""

    def fits(case: Case, got: Tensor | None) -> bool:
        due = layer.attention(case.x, case.h, weights(case), case.attention) - case.x
        alike = got is not None and ((got - due).abs() <= 2 * bench.tolerance(case)) | (got.isnan() & due.isnan())
        return bool(torch.as_tensor(alike).all())

    return all(fits(case, got) for case, got in answers)


Placing = Callable[[Tensor, Tensor], Sequence[Tensor]]  # from W_Q and W_K (K, R, D) to the weights at the places


def _at_places(placing: Placing, case: Case) -> dict[str, Tensor]:
    placed = zip(_PLACES, placing(case.weights["W_Q"], case.weights["W_K"]), strict=True)
    return {**case.weights, **dict(placed)}


def _chosen(choice: Sequence[str], W_Q: Tensor, W_K: Tensor) -> Sequence[Tensor]:
    return [{"W_Q": W_Q, "W_K": W_K}[W] for W in choice]


def _exchanged() -> Iterator[tuple[WrongPart, Placing]]:
    """Every wrong choice of W_Q or W_K at the four places, those with few wrong ones first."""
    choices = sorted(itertools.product(("W_Q", "W_K"), repeat=4), key=lambda one: sum(map(str.__ne__, one, _RIGHT)))
    for choice in choices[1:]:
        wrong = {place: W for place, W, right in zip(_PLACES, choice, _RIGHT, strict=True) if right != W}
        name = {("values",): "value path", ("outputs",): "output projection", ("queries", "keys"): "score"}
        used = " and ".join(f"{W} for the {place}" for place, W in wrong.items())
        part = WrongPart(name.get(tuple(wrong), "W_Q and W_K"), f"its answers are those of a layer with {used}")
        yield part, partial(_chosen, choice)


def _interleaved(W: Tensor) -> Tensor:
    """Row r of head k is row r K + k of all."""
    return W.reshape(W.shape[1], W.shape[0], -1).transpose(0, 1)


def _fused(*weights: Tensor) -> Sequence[Tensor]:
    """Weights that lie one after the other, (n K R, D), read head by head."""
    K, R, _ = weights[0].shape
    return torch.cat(weights).reshape(K, len(weights), R, -1).unbind(1)


_HEADS = "heads are interleaved: its head k has rows k, k + K, k + 2K ... of {}, not rows k R to (k + 1) R - 1"
_FUSED = "a fused weight holds {}, each with all its heads, but is read head by head, as (K, {}, R, D)"
_LAYOUTS: Sequence[tuple[WrongPart, Placing]] = (
    (WrongPart("heads", _HEADS.format("W_Q and W_K")), lambda Q, K: [_interleaved(W) for W in (Q, K, K, Q)]),
    (WrongPart("heads", _HEADS.format("W_Q and W_K") + "; the outputs' are right"),
     lambda Q, K: [*(_interleaved(W) for W in (Q, K, K)), Q]),
    (WrongPart("heads", _FUSED.format("queries, keys and values", 3)), lambda Q, K: [*_fused(Q, K, K), Q]),
    (WrongPart("heads", _FUSED.format("queries and keys", 2)),
     lambda Q, K: [(f := _fused(Q, K))[0], f[1], f[1], Q]),
    (WrongPart("heads", _FUSED.format("queries and keys", 2) + ", for the outputs, too"),
     lambda Q, K: [(f := _fused(Q, K))[0], f[1], f[1], f[0]]),
)  # fmt: skip
