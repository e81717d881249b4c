"""Decoding token by token from a cache gives the output of the whole row.

An implementation with attention is compared with its own attention, so that a wrong formula is not blamed on the
cache. One that only decodes is compared with the golden answer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from cemverify.conformance.asking.calls import Caller, prefilled
from cemverify.conformance.implementations.features import PREFILL
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, moved
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.properties.base import Check, states
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import LENGTHS, Space, mixed

SEVERAL_TOKENS = "there are several tokens, and the update is not zero"
_PIECES = (2, 3, 7, 16)  # tokens of a piece after the first
_CACHED = 65  # tokens: beyond a block of 64; token by token, more would take too long


def _decoding(
    name: str,
    claim: str,
    spaces: Mapping[str, Space],
    source: str = "Eq. 1 (sum over j <= i); docs/mathematics.md §13",
    **more: Any,
) -> Callable[[Check], Check]:
    """Put above a check of decoding: what it judges, over the cases of each space."""
    usual = {
        "formula": "decode(x_1), decode(x_2; cache), ... = F(x_1 ... x_J)",
        "why": "Text is generated from the cache and losses are computed without it. Where they differ, the model "
        "that is deployed is not the one that was evaluated.",
        "function": "decode",
        "premise": SEVERAL_TOKENS,
    }
    return states(f"structure/decode/{name}", claim=claim, source=source, spaces=spaces, **usual | more)


@_decoding(
    "long-rows",
    f"Decoding up to {_CACHED} tokens from a cache gives the output of the whole row, across block boundaries.",
    {
        "": Space(
            "attention",
            choices={"position": ("none", "alibi", "rotary")},
            apart=False,
            sizes={"J": tuple(n for n in LENGTHS if n <= _CACHED)},
            textures=("plain",),
        )
    },
    looks_around=True,
)
@_decoding(
    "cached-equals-uncached-any-options",
    "Decoding from a cache gives the output of the whole row, for any combination of options.",
    {"": mixed("attention", steps=(1, 2, 3), apart=False)},
    source="docs/mathematics.md §13",
    looks_around=True,
)
@_decoding(
    "cached-equals-uncached-{}",
    "Decoding token by token from a cache gives the output of the whole row.",
    {
        name: Space("attention", options, steps=(1, 2), apart=False)
        for name, options in {
            "plain": {},
            "diagonal-shared": {"diagonal": "shared"},
            "alibi": {"position": "alibi"},
            "rotary": {"position": "rotary"},
        }.items()
    },
    source="docs/mathematics.md §13 (one tensor serves as keys and values)",
    looks_around=True,
)
def cache_changes_nothing(caller: Caller, case: Case) -> Evidence:
    """Decoding token by token from a cache equals the whole row at once, at every position."""
    case = replace(case, x=case.h).to(caller.dtype).to(torch.float64)
    claim, whole, tolerance = _whole(caller, case)
    several = case.x.shape[1] > 1
    return Evidence.of(
        Comparison(claim, caller.decoded(case), whole, tolerance),
        telling=several and moved(whole - case.x, tolerance),
    )


@_decoding(
    "every-prefix",
    "Decoding any prefix of a row gives the same prefix of the output of the whole row.",
    {"": mixed("attention", steps=(1, 2), apart=False)},
)
def every_prefix_decodes(caller: Caller, case: Case) -> Evidence:
    """Decoding the first 1, 2 ... J tokens gives the beginning of the output of the whole row."""
    case = replace(case, x=case.h).to(caller.dtype).to(torch.float64)
    _, whole, tolerance = _whole(caller, case)
    J = case.h.shape[1]
    rows = [caller.decoded(replace(case, x=case.h[:, :n], h=case.h[:, :n])) for n in range(1, J + 1)]
    got = torch.cat(rows, 1)  # (B, 1 + 2 + ... + J, D)
    expected, tolerances = (torch.cat([a[:, :n] for n in range(1, J + 1)], 1) for a in (whole, tolerance))
    comparison = Comparison("decoded prefix = prefix of the whole row", got, expected, tolerances)
    return Evidence.of(comparison, telling=J > 1 and moved(whole - case.x, tolerance))


@_decoding(
    "pieces",
    "A row in pieces, each with the cache that the one before it left, gives the output of the whole row.",
    {"": mixed("attention", steps=(1, 2), apart=False)},
    source="docs/mathematics.md §13",
    formula="prefill(a; cache) then prefill(b; cache of a) = F(a then b)",
    why="Prompts are read in chunks and continued from a cache that is warm. There the tokens of a piece follow "
    "others and one another: masks and positions that count from the piece's first token are right without a cache.",
    needs={PREFILL},
    looks_around=True,
    since="2026.12",
)
def pieces_give_the_row(caller: Caller, case: Case) -> Evidence:
    """Two rows in turns, the second being the first backwards, from two caches."""
    case = replace(case, x=case.h).to(caller.dtype).to(torch.float64)
    rows = [case, case.with_states(lambda states: states.flip(1))]
    J = case.h.shape[1]
    if caller.kind.compiles:  # for each length
        cuts = [J // 2]
    else:
        cuts = list(range(1 + case.turn(max(J - 1, 1)), J, _PIECES[case.turn(len(_PIECES))]))
    got = torch.cat(prefilled(caller, rows, cuts))  # (2 B, J, D)
    whole, tolerance = (torch.cat(each) for each in zip(*(_whole(caller, row)[1:] for row in rows), strict=True))
    comparison = Comparison("a row in pieces = the whole row", got, whole, tolerance)
    return Evidence.of(comparison, telling=J > 1 and moved(whole - torch.cat([row.x for row in rows]), tolerance))


def _whole(caller: Caller, case: Case) -> tuple[str, Tensor, Tensor]:
    """The claim, the output of the whole row, and how far from it decoding may be: (B, J, D)."""
    if "attention" in caller.functions:
        whole = caller.output(case)
        return "cached = uncached", whole, 2 * relation_budget(case, whole, caller.dtype)
    return "cached = right output", golden(case), output_budget(case, caller.dtype)
