"""Every statement of the ledger, falsified or corrected: a constant perturbed, an error put right, or other cases.

A verdict that follows from the statement changes with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import Any

import sympy

from cemverify.claims import Claim
from cemverify.claims.arguments import Argument, Lemma, Predicate, Properties, Search

Change = Mapping[str, Any] | Callable[[Predicate], Predicate]


def asks_the_statement(argument: Argument) -> bool:
    """Whether an argument tests the statement on cases; if not, it belongs to the proof of this statement alone."""
    return not isinstance(argument, Lemma | Properties)


def turned_round(claim: Claim) -> Claim:
    """The claim of the changed statement, with every argument that tests it on cases."""
    change = TURNED[claim.id]
    assert claim.holds_for is not None
    holds_for = change(claim.holds_for) if callable(change) else partial(claim.holds_for, **change)
    return replace(claim, holds_for=holds_for, arguments=[*filter(asks_the_statement, claim.arguments)])


def without_condition(claim: Claim) -> Claim:
    """The claim without its condition: searches outside it now search all cases."""
    asking = filter(asks_the_statement, claim.arguments)
    arguments = [replace(each, outside=False) if isinstance(each, Search) else each for each in asking]
    return replace(claim, within=None, arguments=arguments)


# by claim: the changed arguments of its predicate, or the changed predicate
TURNED: Mapping[str, Change] = {
    "1-gradient": {"output": "key"},  # W_O = W_K^T
    "1-temperature": {"of": "head"},  # the scale is 1/sqrt(R)
    "2-gated-mlp": {"activated": "W h"},  # the activation acts on W h
    "3-silu-primitive": {"off": sympy.Rational(1, 100)},  # with x / 100 added
    "3-largest-slopes": {"factor": 1.001},  # slopes a thousandth larger
    "4-any-step": {"direction": -1},  # a step up the gradient
    "4-convex": {"side": -1},  # it is concave
    "4-prefactor": {"prefactor": "right"},  # with the prefactor -tau
    "4-minimum": {"confined": True},  # with |x|^2 / 2 added
    "5-per-head": {"sign": -1},  # it ascends
    "6-softplus-diagonal": {"form": "safe"},  # with c in front of the cross term
    "6-safe-form": {"scaled": False},  # without the c
    "7-sign": {"sign": 1},  # with a plus, as in Eq. 3, 12 and 13
    "7-score-only": {"in_values": True},  # the diagonal in scores and values
    "7-norm-monotone": {"sign": -1},  # the step goes the other way
    "7-block": {"residual": "N(h)"},  # it is a block with N(h) as its residual
    "8-alibi-sign": {"sign": -1},  # with a minus
    "8-alibi-overhead": {"at_most": Fraction(1, 10000)},  # one in ten thousand
    "8-bias-gradient": {"bias": "moving"},  # a bias that depends on x
    "9-safe-step": {"sign": -1},  # a step up the gradient
    "10-convex": {"side": -1},  # it is concave
    "10-gradient": {"gate": "absolute"},  # with |W h| in front
    "10-any-step-size": {"flipped": False},  # without the signs moved
    "10-cccp": {"statement": "always"},  # it applies whenever c exceeds the curvature
    "11-cccp": {"size": sympy.Rational(1, 2)},  # a gradient step of size one half
    "11-any-step": {"sign": -1},  # a step up the gradient
    "11-printed": {"quadratic": True},  # with |x|^2 / 2
    "12-steps-compose": {"memory": "moving"},  # the memory moves along
    "12-keys-once": {"source": "state"},  # keys computed from the state
    "12-not-reuse": {"tokens": "kept"},  # reuse that keeps the first memory
    "13-rotary-gradient": {"back": False},  # the output not rotated back
    "13-rope-memory": {"stored": "no more"},  # it needs no more
    "14-value-path": {"factor": 2},  # the attended memory counted twice
    "14-diagonal-rank": {"diagonal": 0},  # a diagonal of zeros
    "14-operations": {"off": 1},  # one operation more
    "14-diagonal-cost": {"values": False},  # the diagonal in the scores alone
    "14-widened-mlp-cost": {"expected": Fraction(1)},  # as many
    "15-llama-counts": {"embeddings": 1},  # with tied embeddings
    "15-half-attention": {"share": Fraction(1, 3)},  # a third
    "15-two-thirds-mlp": {"share": Fraction(1, 3)},  # one third
    "15-matched-mlp": {"width": Fraction(4, 3)},  # with 4/3
    "15-preconditioner-overhead": {"at_most": Fraction(1, 1000)},  # one in a thousand
    "16-logits": {"factor": Fraction(1, 1000)},  # a thousandth of it
    "16-mlp": {"factor": Fraction(1, 1000)},  # a thousandth of it
    "17-outside-recursion": {"share": Fraction(1, 20)},  # more than a twentieth
    "17-one-third-mlp": {"share": Fraction(2, 3)},  # two thirds
    "17-batch-size": lambda holds_for: lambda case: holds_for((*case[:3], 256)),
    "17-in-place": {"read": "as meant"},  # outputs written elsewhere
    "17-newton": {"sign": -1},  # the step the other way
    "17-more-steps": {"sign": -1},  # steps up the gradient
}
