"""Sizes that users have: rows of 2304 tokens, 64 sequences, 2304 hidden units, 64 heads, 1025 features, 16 steps.

Elsewhere cases are small, because the golden answer of a large one is slow. Here one axis at a time is long and the
others are short, on both sides of the block sizes of kernels, from 16 to 2048, and at odd sizes in between. A token's
answer depends on its own state and on the memory up to it. So in a long row the golden answer is computed only for
windows of a few tokens with all of their memory: around every power of two, at the end, and in places that change
with the seed. That costs J times the windows instead of J squared. Each case is tested once or twice; a fault that
starts at some size and stays beyond it is found.

In float32 and bfloat16 long rows show what short ones cannot: angles, slopes and positions that were computed in a
lower precision than the layer's, and sums that stop growing because their terms fall below the last place.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.patience import refuse_slow
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.oracle.functions import Function, function_of
from cemverify.conformance.oracle.rivals import SWAPPED_GATE, SWAPPED_HEADS, Rival
from cemverify.conformance.properties.base import TRIVIAL, Check, OneAfterTheOther, Property
from cemverify.conformance.questions.cases import Case, Layer
from cemverify.conformance.questions.spaces import Space

_SOURCE = "Eq. 1, 7; docs/mathematics.md §1, §2, §16"
_FEW = 32  # tokens
_WINDOW = 3
_ELSEWHERE = 3  # windows that the seed chooses
_LOW_RANK = PreconditionerConfig("low-rank")
_PER_HEAD = PreconditionerConfig("low-rank-printed", per_head=True)


def windows(case: Case) -> list[Case]:
    """The case's last tokens, those around every power of two, and some others, each with all the memory it reads."""
    return [
        replace(
            case,
            x=case.x[:, start : start + length],
            h=case.h[:, (start if case.layer == "mlp" else 0) : start + length],  # an MLP's token reads only its own
        )
        for start, length in _places(case)
    ]


def _places(case: Case) -> list[tuple[int, int]]:
    """First token and number of tokens of every window; a case of few tokens is its only window."""
    J = case.h.shape[1]
    if J <= _FEW:
        return [(0, J)]
    rng = np.random.default_rng(zlib.crc32(case.h[:, :1].contiguous().numpy().tobytes()))
    edges = [2**k - 1 for k in range(4, J.bit_length()) if 2**k < J]
    starts = {J - _WINDOW, *edges, *(int(start) for start in rng.integers(J, size=_ELSEWHERE))}
    return [(start, min(_WINDOW, J - start)) for start in sorted(starts)]


def right_where_asked(function: Function, rival: Rival) -> Check:
    """A check of an answer in the windows of a row; examples are telling if the rival would have been found there."""
    claim = "stated energy of a large case" if function.is_energy else "update = -eta P grad energy in a large case"

    def answer(caller: Caller, case: Case) -> Tensor:
        return caller.answer(function.name, case)

    def check(caller: Caller, case: Case) -> Evidence:
        case = case.to(caller.dtype).to(torch.float64)
        parts = windows(case)
        expected = [function.expected(part) for part in parts]
        tolerances = [function.tolerance(part, caller.dtype) for part in parts]
        refuse_slow(answer, caller, case)
        update = answer(caller, case) - function.start(case)
        got = torch.cat([update[:, start : start + length] for start, length in _places(case)], 1)
        steps = [value - function.start(part) for value, part in zip(expected, parts, strict=True)]
        comparison = Comparison(claim, got, torch.cat(steps, 1), torch.cat(tolerances, 1))
        telling = any(map(partial(rival.shows, function), parts, expected, tolerances))
        return Evidence.of(comparison, telling=telling)

    return check


def properties() -> Iterator[Property]:
    """One axis after the other at the sizes that users have, in each dtype."""
    for dtype, rows in ((torch.float64, _ROWS), (torch.float32, _ROWS_FLOAT32), (torch.bfloat16, _ROWS_BFLOAT16)):
        name = str(dtype).removeprefix("torch.")
        longest = max(max(row.sizes["J"]) for row in rows)
        claim = f"In {name} and in rows of up to {longest} tokens, with positions, the update is the gradient step."
        yield _property(f"attention/tokens-{name}", claim, rows, dtype)
    claim = "With up to 128 sequences, 64 heads, 1025 features and 16 steps, the update is the gradient step."
    yield _property("attention/widths", claim, _ATTENTION_WIDTHS)
    claim = "With up to 2305 hidden units, on both sides of every block boundary, the update is the gradient step."
    yield _property("mlp/hidden-units", claim, [_wide("mlp", {"M": M}) for M in _HIDDEN])
    claim = "With up to 128 sequences, 2304 tokens, 1025 features and 16 steps, the update is the gradient step."
    yield _property("mlp/widths", claim, _MLP_WIDTHS)
    claim = "In bfloat16, and with up to 4609 features, the update is the gradient step."
    yield _property("mlp/bfloat16", claim, _MLP_BFLOAT16, torch.bfloat16)
    claim = "A large block, too, is attention and then the MLP: in each size in turn."
    yield _property("block/widths", claim, _BLOCK_WIDTHS)
    claim = "In float32, too, the update of large cases is the gradient step: with up to 64 heads and 1025 features."
    yield _property("attention/widths-float32", claim, _ATTENTION_FLOAT32, torch.float32)
    claim = "In float32, too, the update of large cases is the gradient step: with up to 2305 hidden units."
    yield _property("mlp/widths-float32", claim, _MLP_FLOAT32, torch.float32)
    claim = "Decoding 530 tokens one by one gives the update of all at once."
    yield _property("decode/tokens", claim, _DECODED)
    claim = "The stated energy of large cases is the paper's: up to 2304 tokens, 33 heads and 1025 features."
    yield _property("attention/energy", claim, _ENERGIES, function="attention_energy")
    claim = "The stated energy of large cases is the paper's: up to 2305 hidden units and 1025 features."
    yield _property("mlp/energy", claim, _MLP_ENERGIES, function="mlp_energy")


def _property(
    name: str, claim: str, spaces: Sequence[Space], dtype: torch.dtype = torch.float64, function: str | None = None
) -> Property:
    asked = function_of(function or name.partition("/")[0])
    rival = SWAPPED_GATE if asked.layer == "mlp" else SWAPPED_HEADS
    needs = {asked.name, *(("start",) if asked.is_energy else ())}
    if dtype != torch.float64:
        needs.add(f"dtype:{str(dtype).removeprefix('torch.')}")
    return Property(
        f"sizes/{name}",
        claim=claim,
        source=_SOURCE,
        formula="the same update, energy or decoded row, at the sizes that users have",
        why="Tiles, tables of positions and accumulators have limits that no small case reaches. A pass says "
        "nothing beyond the sizes that were tested.",
        check=right_where_asked(asked, rival),
        questions=OneAfterTheOther(tuple(spaces)),
        needs=frozenset(needs),
        dtype=dtype,
        looks_around=dtype == torch.float64,
        premise=rival.premise,
        controls=TRIVIAL,
    )


# --- spaces ---------------------------------------------------------------------------------------

_HEAD = 8  # features of a rotated head: four planes, from one radian per token to a thousandth
_PLANE = 2  # only the first plane, in which a position that is off by one shows most


def _with(sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
    """These sizes, with all other axes short."""
    return {axis: (size,) for axis, size in {"B": 2, "J": 5, "D": 4, "K": 2, "R": 4, "M": 4, **sizes}.items()}


def _row(tokens: int, heads: int = 1, features: int = _HEAD, texture: str | None = None, **options: Any) -> Space:
    """A space of long rows; by default they have few features if keys are rotated, because many average out."""
    turned = options.get("position") == "rotary"
    sizes = _with({"J": tokens, "K": heads, "B": 1, **({"D": _HEAD, "R": features} if turned else {})})
    textures = (texture or ("sparse" if turned else "gentle"),)
    return Space("attention", options, sizes=sizes, free_temperature=False, textures=textures)


# one token more than bfloat16 and float16 can count: with rounded positions a token reads the next one, or takes two
# distances for the same
_COUNTED = (_row(258, texture="loud-end"), _row(2050, texture="loud-end"))
# heads cost as much as tokens; with 9 to 12 and 16 of them, no low precision can represent the slopes
_ROWS: Sequence[Space] = (
    _row(2304, position="rotary"),
    _row(1025, 2, position="alibi"),
    _row(1025),
    _row(1024, 2, position="self-cross"),
    _row(511, 2, position="rotary", diagonal="shared"),
    _row(1337, position="alibi", norm="channel"),
    _row(513, 3, diagonal="per-head"),
    _row(769, 2, norm="folded"),
    *_COUNTED,
    _row(2052, texture="far-keys", position="alibi"),
)
_ROWS_FLOAT32: Sequence[Space] = (
    _row(2304, position="rotary"),
    _row(300, 12, position="alibi"),
    _row(2304, position="alibi"),
    _row(65, 9, position="alibi", norm="channel"),
    _row(513, 3, position="rotary", norm="folded"),
    _row(1025, 2, position="self-cross"),
    _row(33, 10, position="alibi"),
    _row(48, 24, position="alibi"),
    _row(2048, norm="scalar"),
    _row(1337),
    *_COUNTED,
    _row(2052, texture="far-keys", position="alibi"),
    _row(2304, features=64, texture="far-keys", position="rotary"),
)
_ROWS_BFLOAT16: Sequence[Space] = (
    _row(513, 2, position="rotary"),
    _row(300, 11, position="alibi"),
    _row(1025, norm="channel"),
    _row(1025, position="rotary"),
    _row(769, features=_PLANE, position="rotary"),
    _row(1023, 2, position="alibi", diagonal="shared"),
    _row(2304),
    *_COUNTED,
)
# both sides of the blocks that kernels work in, odd ones, and those of the paper's models
_HIDDEN = (
    *(n + off for n in (16, 32, 64, 128, 256, 512, 1024) for off in (-1, 0, 1)),
    *(48, 100, 200, 384, 768, 1792, 2048, 2304, 2305),
)


def _wide(layer: Layer, sizes: Mapping[str, int], kind: PreconditionerConfig | None = None, **options: Any) -> Space:
    """A space of cases in which the named axes have these sizes, and T = `steps` if given."""
    steps = options.pop("steps", 1)
    etas = (0.125,) if steps > 1 else (1.0, 0.5, 0.3)  # larger steps let roundoff grow from step to step
    return Space(
        layer,
        options,
        kind or PreconditionerConfig(),
        steps=(steps,),
        step_sizes=etas,
        apart=layer != "block",
        sizes=_with(sizes),
        textures=("gentle" if steps > 1 else "plain",),
    )


_ATTENTION_WIDTHS: Sequence[Space] = (
    _wide("attention", {"B": 33}),
    _wide("attention", {"B": 128, "J": 3}, position="alibi"),
    _wide("attention", {"K": 17}, position="alibi"),
    _wide("attention", {"K": 33}, diagonal="per-head"),
    _wide("attention", {"K": 64}, _PER_HEAD),
    _wide("attention", {"D": 192}, diagonal="shared"),
    _wide("attention", {"D": 257}, _LOW_RANK, norm="channel"),
    _wide("attention", {"D": 672, "K": 1}, norm="folded"),
    _wide("attention", {"D": 1025, "K": 1}, norm="scalar"),
    _wide("attention", {"R": 65}),
    _wide("attention", {"R": 130, "K": 1}, position="rotary"),
    _wide("attention", {"R": 256, "K": 1}),
    _wide("attention", {"D": 33, "rank": 9}, _LOW_RANK),
    _wide("attention", {"D": 40, "rank": 17}, _PER_HEAD),
    _wide("attention", {}, steps=9),
    _wide("attention", {}, norm="channel", steps=16),
    _wide("attention", {}, steps=17, position="rotary"),
)
_MLP_WIDTHS: Sequence[Space] = (
    _wide("mlp", {"B": 33}),
    _wide("mlp", {"B": 128, "J": 3}),
    _wide("mlp", {"J": 1025, "B": 1}),
    _wide("mlp", {"J": 2304, "B": 1}, norm="channel"),
    _wide("mlp", {"D": 129}, norm="channel"),
    _wide("mlp", {"D": 257}, _LOW_RANK),
    _wide("mlp", {"D": 513}, norm="folded"),
    _wide("mlp", {"D": 1025}, norm="channel"),
    _wide("mlp", {"D": 40, "rank": 17}, _LOW_RANK),
    _wide("mlp", {}, steps=9),
    _wide("mlp", {}, norm="channel", steps=16),
)


def _positive_if_long(spaces: Sequence[Space]) -> Iterator[Space]:
    """Numbers of one sign if sums over features or hidden units are long.

    Such sums are large compared with the roundoff granted to them, so an error that all terms share, such as a
    norm's, shows.
    """
    for space in spaces:
        long = max(space.sizes["D"]) > 128 or max(space.sizes["M"]) > 128
        yield replace(space, textures=("positive",)) if long else space


_ATTENTION_FLOAT32 = tuple(_positive_if_long(_ATTENTION_WIDTHS))
_MLP_FLOAT32 = tuple(
    _positive_if_long([*(_wide("mlp", {"M": M}) for M in (257, 513, 1025, 2048, 2305)), *_MLP_WIDTHS])
)
_MLP_BFLOAT16: Sequence[Space] = (
    _wide("mlp", {"D": 4609}, norm="scalar"),
    _wide("mlp", {"D": 4609, "M": 2, "J": 9}, norm="channel"),
    _wide("mlp", {"D": 4609, "M": 1, "J": 9}, norm="scalar"),
    _wide("mlp", {"D": 129}, norm="folded"),
    _wide("mlp", {"J": 1025, "B": 1}),
    _wide("mlp", {"M": 33}),
)
# states of one magnitude, whose squares add up until the next one falls below the last place
_MLP_BFLOAT16 = tuple(replace(space, textures=("signs",)) for space in _MLP_BFLOAT16)
_BLOCK_WIDTHS: Sequence[Space] = (
    _wide("block", {"J": 1025, "B": 1}),
    _wide("block", {"B": 65, "J": 3}),
    _wide("block", {"M": 2304}),
    _wide("block", {"K": 24}, position="alibi"),
    _wide("block", {"D": 513, "K": 1}, norm="channel"),
    _wide("block", {}, norm="scalar", steps=12),
)
# a long row with each position, because an implementation may have only one of them
_DECODED: Sequence[Space] = (
    *(_wide("attention", {"J": 530, "B": 1}, position=name) for name in ("rotary", "alibi", "none")),
    _wide("attention", {"J": 129, "B": 1}, position="alibi", diagonal="shared"),
)
_DECODED = tuple(replace(space, apart=False) for space in _DECODED)
_ENERGIES: Sequence[Space] = (
    _row(2304),
    _row(2052, texture="far-keys", position="alibi"),
    _wide("attention", {"K": 33}),
    _wide("attention", {"D": 1025, "K": 1}),
    _wide("attention", {"B": 65, "J": 3}, position="rotary"),
)
_MLP_ENERGIES: Sequence[Space] = (
    *(_wide("mlp", {"M": M}) for M in (257, 1025, 2305)),
    _wide("mlp", {"D": 1025}),
    _wide("mlp", {"B": 65, "J": 3}),
    _wide("mlp", {"J": 1025, "B": 1}),
)
