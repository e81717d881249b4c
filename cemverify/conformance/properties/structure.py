"""What an output may depend on: causality, independence of tokens and rows, the order of heads."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.faults import Discard
from cemverify.conformance.oracle.evidence import Comparison, Evidence, moved
from cemverify.conformance.oracle.functions import function_of
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.oracle.rivals import NO_MASK
from cemverify.conformance.properties.base import states
from cemverify.conformance.properties.explanations import CAUSAL, ROWS_APART
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import Space, mixed

_READS_OTHERS = frozenset({"random", "shuffled"})
_BLOCK = mixed("block", steps=(1, 2), apart=False, tokens=2, batch=2)
_PER_HEAD = PreconditionerConfig("diagonal", per_head=True)


@states(
    "structure/{}",
    claim="A token's output does not depend on later tokens, in x or in the memory.",
    source="Eq. 1 (sum over j <= i)",
    **CAUSAL,
    spaces={
        "attention/causality": Space("attention", steps=(1, 2), tokens=2),
        "attention/causality-with-diagonal-and-bias": Space(
            "attention", {"diagonal": "per-head", "position": "self-cross"}, steps=(1, 2), tokens=2
        ),
        "block/causality": _BLOCK,
    },
    premise=NO_MASK.premise,
    controls=_READS_OTHERS,
)
def future_is_not_read(caller: Caller, case: Case) -> Evidence:
    """Changing the tokens from some position on does not change the outputs before it."""
    case = case.to(caller.dtype).to(torch.float64)
    before = caller.output(case)
    budget = relation_budget(case, before, caller.dtype)
    places = range(1, case.x.shape[1])
    if not places:
        raise Discard("a single token has no future")
    changed = (replace(case, x=_changed_from(case.x, i), h=_changed_from(case.h, i)) for i in places)
    got = torch.cat([caller.output(other)[:, :i] for i, other in zip(places, changed, strict=True)], 1)
    expected, tolerance = (torch.cat([a[:, :i] for i in places], 1) for a in (before, budget))
    claim = "outputs before token i are unchanged when the tokens from i on become 3 - 2x, in reverse order"
    comparison = Comparison(claim, got, expected, 2 * tolerance)
    return Evidence.of(comparison, telling=NO_MASK.shows(function_of(case.layer), case, golden(case), budget))


@states(
    "structure/mlp/token-independence",
    claim="A token's output depends on that token only.",
    source="Eq. 7",
    formula="x_j changed for all j != i:  x'_i unchanged",
    why="An MLP that mixes tokens bypasses the causal mask.",
    spaces={"": Space("mlp", steps=(1, 2), tokens=2)},
    premise="the update is not zero",
    controls=_READS_OTHERS,
)
def tokens_are_independent(caller: Caller, case: Case) -> Evidence:
    """The MLP's output at a token depends only on that token: changing all others changes nothing there."""
    case = case.to(caller.dtype).to(torch.float64)
    changed = replace(case, x=_changed_from(case.x, 1), h=_changed_from(case.h, 1))
    got, whole = caller.output(changed)[:, :1], caller.output(case)
    expected, budget = whole[:, :1], relation_budget(case, whole, caller.dtype)[:, :1]
    claim = "the first token's output is unchanged when the others change"
    return _unchanged(claim, got, expected, case.x[:, :1], budget, differs=case.x.shape[1] > 1)


@states(
    "structure/{}/batch-independence",
    claim="A batch row's output does not depend on the other rows.",
    source="Eq. 1, 7",
    **ROWS_APART,
    spaces={
        "attention": Space("attention", steps=(1, 2), batch=2),
        "mlp": Space("mlp", steps=(1, 2), batch=2),
        "block": _BLOCK,
    },
    premise="the rows of the batch differ, and the update is not zero",
    controls=frozenset({"random"}),
)
def batch_rows_are_independent(caller: Caller, case: Case) -> Evidence:
    """A batch row alone gives the same output as in the batch."""
    case = case.to(caller.dtype).to(torch.float64)
    alone = replace(case, x=case.x[:1], h=case.h[:1])
    got, expected = caller.output(alone), caller.output(case)[:1]
    budget = relation_budget(alone, expected, caller.dtype)
    differs = not torch.equal(case.h[0], case.h[1])
    return _unchanged("a batch row alone = the same row in a batch", got, expected, alone.x, budget, differs=differs)


def led_by_heads(case: Case) -> set[str]:
    """The weights whose first axis is that of the heads."""
    led = {"W_Q", "W_K", "to_self", "to_others"}
    led |= {"diagonal"} if case.attention.diagonal == "per-head" else set()
    return led | ({"P_d", "P_U", "P_V"} if case.attention.preconditioner.per_head else set())


@states(
    "structure/attention/head-order{}",
    claim="The order of the heads does not matter.",
    source="Eq. 1 (sum over k)",
    formula="F(heads in reverse order, with all that belongs to them) = F(heads)",
    why="If it matters which head is which, some weight, bias or preconditioner is paired with the wrong head.",
    spaces={
        "": Space("attention", steps=(1, 2)),
        "-with-per-head-diagonal": Space("attention", {"diagonal": "per-head"}, steps=(1, 2)),
        "-with-per-head-preconditioner": Space("attention", {}, _PER_HEAD, steps=(1, 2)),
    },
    premise="the heads differ, and the update is not zero",
)
def head_order_is_free(caller: Caller, case: Case) -> Evidence:
    """Reversing the order of the heads, with everything that belongs to them, changes nothing."""
    case = case.to(caller.dtype).to(torch.float64)
    led = led_by_heads(case)
    weights = {name: w.flip(0) if name in led else w for name, w in case.weights.items()}
    got, expected = caller.output(replace(case, weights=weights)), caller.output(case)
    budget = relation_budget(case, expected, caller.dtype)
    differs = any(not torch.equal(w, case.weights[name]) for name, w in weights.items())
    return _unchanged("output with the heads reversed", got, expected, case.x, budget, differs=differs)


def _changed_from(tokens: Tensor, i: int) -> Tensor:
    """Tokens i and later replaced by others of the same magnitude."""
    changed = tokens.clone()
    changed[:, i:] = 3.0 - 2.0 * changed[:, i:].flip(1)
    return changed


def _unchanged(
    claim: str, got: Tensor, expected: Tensor, start: Tensor, budget: Tensor, *, differs: bool
) -> Evidence:
    """Two runs of the implementation, each within its budget of the truth.

    They are telling if the questions differ in what must not matter, and the update is not zero.
    """
    return Evidence.of(
        Comparison(claim, got, expected, 2 * budget), telling=differs and moved(expected - start, budget)
    )
