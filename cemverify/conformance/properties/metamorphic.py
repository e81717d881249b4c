"""Metamorphic relations: changes to a case whose effect on the output is known, whatever the output is.

No golden answer enters: both sides are the implementation's own. Changes are exact in floating point (powers of two,
permutations, sums of numbers of few bits), so that both sides are within their budgets of the same truth.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from cemverify.cem.layers import PreconditionerConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.oracle.budgets import energy_budget, output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence, judge, moved
from cemverify.conformance.oracle.golden import energies_at, golden
from cemverify.conformance.oracle.relations import relation_budget
from cemverify.conformance.properties.base import Explanation, Property, case_property
from cemverify.conformance.properties.structure import led_by_heads
from cemverify.conformance.questions.cases import Case
from cemverify.conformance.questions.spaces import Space, mixed

Change = Callable[[Case], Case]
Effect = Callable[[Tensor], Tensor]


def _unchanged(values: Tensor) -> Tensor:
    return values


@dataclass(frozen=True)
class Relation:
    """A change to a case, and its effect on the update."""

    claim: str  # the relation, in words
    change: Change = field(repr=False)  # of the case, to be exact in its dtype
    # linear, on the update x^(T) - x^(0); on its budget too, through magnitudes
    effect: Effect = field(default=_unchanged, repr=False)
    # the change done by half, as a mistake would do it, which must show for the example to tell
    half: Change | None = field(default=None, repr=False)

    def check(self, caller: Caller, case: Case) -> Evidence:
        """update(changed case) = effect(update(case))."""
        case = _few_bits(case.to(caller.dtype).to(torch.float64))
        other = self.change(case)
        first, second = caller.output(case), caller.output(other)
        before, after = first - case.x, second - other.x
        budget = relation_budget(case, first, caller.dtype)
        tolerance = relation_budget(other, second, caller.dtype) + _through(self.effect, budget)
        telling = moved(before, budget) and not _same(case, other)
        if self.half is not None:
            halfway = self.half(case)
            telling = telling and moved(self.effect(golden(case) - case.x) - (golden(halfway) - halfway.x), tolerance)
        return judge(Comparison(self.claim, after, self.effect(before), tolerance), telling=telling)


def temperature_scales_the_energy(caller: Caller, case: Case) -> Evidence:
    """eps(2A, 2 tau) = 2 eps(A, tau)."""
    case = case.to(caller.dtype).to(torch.float64)
    other = _hotter(case, 1)
    tolerance = 2 * energy_budget(case, case.x, caller.dtype) + energy_budget(other, other.x, caller.dtype)
    doubled = 2 * caller.energy(case)
    comparison = Comparison(
        "energy with A and tau doubled = twice the energy", caller.energy(other), doubled, tolerance
    )
    return judge(comparison, telling=moved(energies_at(case, case.x), tolerance))


def a_shift_of_the_logits_shifts_the_energy(caller: Caller, case: Case) -> Evidence:
    """With every bias increased by one, eps falls by tau K."""
    case = _few_bits(case.to(caller.dtype).to(torch.float64))
    other = _with(case, to_self=lambda b: b + 1, to_others=lambda b: b + 1)
    tolerance = energy_budget(case, case.x, caller.dtype) + energy_budget(other, other.x, caller.dtype)
    shifted = caller.energy(case) - case.attention.tau * case.attention.heads
    comparison = Comparison(
        "energy with every bias increased by one = energy - tau K", caller.energy(other), shifted, tolerance
    )
    return judge(comparison, telling=moved(shifted, tolerance))


def gate_is_additive(caller: Caller, case: Case) -> Evidence:
    """update(W) + update(W') = update(W + W'): the update is linear in gamma = W h."""
    case = _few_bits(case.to(caller.dtype).to(torch.float64))
    W = case.weights["W"]
    gates = (W, W.flip(-1), W + W.flip(-1))
    parts = [replace(case, weights={**case.weights, "W": gate}) for gate in gates]
    answers = [caller.output(part) for part in parts]
    first, second, both = (answer - part.x for answer, part in zip(answers, parts, strict=True))
    tolerances = [relation_budget(part, answer, caller.dtype) for answer, part in zip(answers, parts, strict=True)]
    tolerance = tolerances[0] + tolerances[1] + tolerances[2]
    claim = "update of the sum of two gates = sum of their updates"
    return judge(
        Comparison(claim, both, first + second, tolerance),
        telling=moved(first, tolerance) and moved(second, tolerance),
    )


def reflection_leaves_the_identity(caller: Caller, case: Case) -> Evidence:
    """sigma(z) - sigma(-z) = z, so that update(V) + update(-V) is the update of the identity."""
    case = case.to(caller.dtype).to(torch.float64)
    other = _with(case, V=lambda V: -V)
    total = caller.output(case) - case.x + caller.output(other) - other.x
    linear = golden(case.having(activation="identity")) - case.x
    tolerance = output_budget(case, caller.dtype) + output_budget(other, caller.dtype)
    tolerance = tolerance + output_budget(case.having(activation="identity"), caller.dtype)
    comparison = Comparison("update(V) + update(-V) = update of the identity", total, linear, tolerance)
    return judge(comparison, telling=moved(linear, tolerance))


def equal_tokens_get_equal_answers(caller: Caller, case: Case) -> Evidence:
    """In a row of equal tokens all keys are equal, so biases and mask cannot matter."""
    case = replace(case, x=_repeated(case.x), h=_repeated(case.h)).to(caller.dtype).to(torch.float64)
    got = caller.output(case)
    budget = relation_budget(case, got, caller.dtype)
    tolerance = budget + budget[:, :1]
    telling = case.x.shape[1] > 1 and moved(got - case.x, budget)
    evidence = judge(
        Comparison("output at each of equal tokens = at the first", got, got[:, :1].expand_as(got), tolerance)
    )
    return replace(evidence, telling=telling, case=case)


_relation = partial(
    case_property, dtype=torch.float64, share=0.3, premise="the case is changed, and the update is not zero"
)
_REORDERED = Explanation(
    "F(reordered rows, heads, units or features) = reordered F",
    "No row, head, unit or feature is special. Where one is, an index is off or a block is left over.",
)
_TURNED = Explanation(
    "F(Q x, Q h, weights Q^T) = Q F(x, h, weights)",
    "The energy knows scalar products only. A layer that treats features one by one has something the formula has "
    "not.",
)
_SYMMETRIC = Explanation("P(U, V) = P(V, U)", "U V^T + V U^T is symmetric in its factors; U V^T alone is not.")
_PROPORTIONAL = Explanation(
    "update(eta / 2) = update(eta) / 2, one step",
    "A step size that enters twice, or only some of the terms, shows at once.",
)
_LINEAR = Explanation(
    "update is linear in gamma = W h", "Only V x passes through the activation. With gate and up exchanged, W h does."
)


def properties() -> Iterator[Property]:
    """Relations between the answers to a case and to a changed one, of updates and of energies."""
    attention = mixed("attention", steps=(1, 2))
    unbiased = {"diagonal": ("none", "shared", "per-head"), "position": ("none", "self-cross", "rotary")}
    turning = {"position": ("none", "alibi", "self-cross", "rotary"), "norm": ("none", "scalar")}
    rows: tuple[tuple[str, str, str, Explanation, Relation, Space], ...] = (
        ("attention/rescaled-heads", "Multiplying W_Q by c and dividing W_K by c, per head, changes nothing.",
         "Eq. 1 (A_k = W_Q^T W_K)",
         Explanation(
             "update(c_k W_Q,k, W_K,k / c_k) = update(W_Q, W_K)",
             "Only the product W_Q^T W_K enters the energy. An untied value or output path sees its factors.",
         ),
         _RESCALED, attention),
        ("attention/temperature", "Doubling A and tau and halving the step size changes nothing.",
         "docs/mathematics.md §1 (eps(cA, c tau) = c eps(A, tau))",
         Explanation(
             "update(2 A, 2 tau, eta / 2) = update(A, tau, eta)",
             "Scores, values and step scale together. A temperature in the wrong place breaks exactly this.",
         ),
         _HOTTER, attention),
        ("attention/head-permutation", "The order of the heads does not matter, for any combination of options.",
         "Eq. 1 (sum over k)", _REORDERED, _HEADS_TURNED,
         Space("attention", choices=unbiased, preconditioners=attention.preconditioners, steps=(1, 2))),
        ("attention/feature-permutation", "The order of the features within a head does not matter.",
         "Eq. 1 (A_k = W_Q^T W_K)", _REORDERED, _FEATURES_TURNED,
         Space("attention", choices={"diagonal": unbiased["diagonal"], "norm": attention.choices["norm"]},
               steps=(1, 2))),
        ("attention/joint-rotation", "Rotating x, h and the weights rotates the update.",
         "Eq. 1 (beta.x)", _TURNED, _ROTATED, Space("attention", choices=turning, steps=(1, 2))),
        ("attention/logit-shift", "Adding a constant to every bias changes nothing.",
         "docs/mathematics.md §8",
         Explanation(
             "update(b + c) = update(b)",
             "Softmax does not see a constant; a sum that is not normalised does.",
         ),
         _SHIFTED, Space("attention", {"position": "self-cross"}, steps=(1, 2))),
        ("attention/batch-permutation", "The order of the batch rows does not matter.",
         "Eq. 1", _REORDERED, _ROWS_TURNED, replace(attention, batch=2)),
        ("attention/gain-and-temperature", "Doubling the gain and the temperature changes nothing.",
         "docs/mathematics.md §7c",
         Explanation(
             "update(2 gain, 2 tau) = update(gain, tau), the norm inside",
             "A gain belongs inside the norm that the scores see; elsewhere it scales something else.",
         ),
         _LOUDER,
         Space("attention", choices={"norm": ("scalar", "channel"), "diagonal": unbiased["diagonal"]}, steps=(1, 2))),
        ("attention/preconditioner-factors", "Exchanging U and V gives the same preconditioner.",
         "Eq. 12", _SYMMETRIC, _FACTORS_SWAPPED,
         Space("attention", preconditioners=_low_rank(attention.preconditioners), steps=(1, 2))),
        ("attention/step-size", "One step of half the step size moves half as far.", "Eq. 3", _PROPORTIONAL, _SLOWER,
         mixed("attention")),
        ("mlp/gate-linearity", "One step is linear in gamma = W h: multiplying W by -2 multiplies the update by -2.",
         "Eq. 7", _LINEAR, _GATE_TURNED, mixed("mlp")),
        ("mlp/unit-permutation", "The order of the hidden units does not matter.", "Eq. 7", _REORDERED, _UNITS_TURNED,
         mixed("mlp", steps=(1, 2))),
        ("mlp/joint-rotation", "Rotating x, h and the weights rotates the update.",
         "Eq. 7", _TURNED, _ROTATED, Space("mlp", choices={"norm": ("none", "scalar")}, steps=(1, 2))),
        ("mlp/batch-permutation", "The order of the batch rows does not matter.", "Eq. 7", _REORDERED, _ROWS_TURNED,
         mixed("mlp", steps=(1, 2), batch=2)),
        ("mlp/split-units", "Duplicating every hidden unit and halving W changes nothing.", "Eq. 7",
         Explanation(
             "every unit twice, W halved:  update unchanged",
             "A mean in place of a sum over units, or a block of units left out, changes it.",
         ),
         _UNITS_SPLIT, mixed("mlp", steps=(1, 2))),
        ("mlp/preconditioner-factors", "Exchanging U and V gives the same preconditioner.", "Eq. 13",
         _SYMMETRIC, _FACTORS_SWAPPED,
         Space("mlp", preconditioners=_low_rank(mixed("mlp").preconditioners), steps=(1, 2))),
        ("mlp/step-size", "One step of half the step size moves half as far.", "Eq. 3", _PROPORTIONAL, _SLOWER,
         mixed("mlp")),
        ("block/batch-permutation", "The order of the batch rows does not matter.", "Eq. 1, 7", _REORDERED,
         _ROWS_TURNED, mixed("block", apart=False, batch=2)),
    )  # fmt: skip
    for name, claim, source, explanation, relation, space in rows:
        needs = {"temperature"} if relation in (_HOTTER, _LOUDER) else set()
        needs |= {"step-size"} if relation in (_HOTTER, _SLOWER) else set()
        needs |= {"preconditioner:low-rank"} if relation is _FACTORS_SWAPPED else set()
        controls = frozenset({"random"} if relation in _EXACTING else ())
        id_ = f"metamorphic/{name}"
        yield _relation(id_, claim, source, *explanation, relation.check, space, needs=needs, controls=controls)
    of_energies: dict[str, Any] = {
        "function": "attention_energy",
        "premise": "the energy is not zero",
        "controls": frozenset({"random", "identity"}),
    }
    yield _relation(
        "metamorphic/attention/energy-temperature",
        "Doubling A and tau doubles the energy.",
        "docs/mathematics.md §1",
        "eps(2 A, 2 tau) = 2 eps(A, tau)",
        "A temperature on one side only is a different energy.",
        temperature_scales_the_energy,
        mixed("attention"),
        needs={"temperature"},
        **of_energies,
    )
    yield _relation(
        "metamorphic/attention/energy-logit-shift",
        "Adding a constant c to every bias lowers the energy by tau K c.",
        "docs/mathematics.md §8",
        "eps(b + c) = eps(b) - tau K c",
        "The bias must enter each head's log-sum-exp exactly once.",
        a_shift_of_the_logits_shifts_the_energy,
        Space("attention", {"position": "self-cross"}),
        **of_energies,
    )
    noise = frozenset({"random"})
    claim = "One step with the sum of two gates is the sum of the two steps."
    id_ = "metamorphic/mlp/gate-additivity"
    yield _relation(id_, claim, "Eq. 7", *_LINEAR, gate_is_additive, mixed("mlp"), controls=noise)
    for activation in ("silu", "gelu", "gelu-tanh"):
        yield _relation(
            f"metamorphic/mlp/reflection-{activation}",
            "The updates with V and -V add up to the update of the identity, because sigma(z) - sigma(-z) = z.",
            "docs/mathematics.md §3",
            "update(V) + update(-V) = update of the identity activation,  as sigma(z) - sigma(-z) = z",
            "An approximate activation, or the wrong one of the two GELUs, breaks a relation that needs no oracle.",
            reflection_leaves_the_identity,
            Space("mlp", {"activation": activation}),
            controls=noise | {"identity"},
        )
    biased = {"diagonal": unbiased["diagonal"], "position": ("none", "alibi", "self-cross")}
    yield _relation(
        "metamorphic/attention/equal-tokens",
        "In a row of equal tokens, every token gets the same output, whatever the bias.",
        "Eq. 1 (weights sum to one)",
        "x_1 = ... = x_J, h_1 = ... = h_J:  x'_1 = ... = x'_J, whatever the bias",
        "Weights that do not sum to one show here, in the mask and at the edges of blocks above all.",
        equal_tokens_get_equal_answers,
        Space("attention", choices=biased, steps=(1, 2)),
        controls=noise,
    )


# --- changes ----------------------------------------------------------------------------------------


def _with(case: Case, **changes: Callable[[Tensor], Tensor]) -> Case:
    return replace(case, weights={name: changes.get(name, _unchanged)(w) for name, w in case.weights.items()})


def _by_head(w: Tensor) -> Tensor:
    """2, -2, 2 ... for the heads: (K, 1, 1)."""
    return (2.0 * (-1.0) ** torch.arange(w.shape[0], dtype=w.dtype))[:, None, None]


def _hotter(case: Case, steps: float) -> Case:
    """Twice A and tau; the step size times `steps`."""
    tau, eta = 2 * case.attention.tau, steps * case.attention.step_size
    return _with(case, W_K=lambda w: 2 * w, diagonal=lambda d: 2 * d).having(temperature=tau, step_size=eta)


def _orthogonal(n: int) -> Tensor:
    """Blocks of four turned by H/2, H Hadamard's; what is left over in reverse order with alternating signs."""
    H = torch.tensor([[1.0, 1, 1, 1], [1, -1, 1, -1], [1, 1, -1, -1], [1, -1, -1, 1]], dtype=torch.float64) / 2
    rest = n % 4
    turned = torch.diag((-1.0) ** torch.arange(rest, dtype=torch.float64)).flip(0)
    blocks = [H] * (n // 4) + ([turned] if rest else [])
    whole: Tensor = torch.block_diag(*blocks)  # type: ignore[no-untyped-call]
    return whole


def _turned(values: Tensor) -> Tensor:
    return values @ _orthogonal(values.shape[-1]).mT


def _rotated(case: Case) -> Case:
    changed = _with(case, **dict.fromkeys(("W_Q", "W_K", "V", "W"), _turned))
    return replace(changed, x=_turned(case.x), h=_turned(case.h))


def _split(case: Case) -> Case:
    changed = _with(case, V=lambda V: torch.cat((V, V)), W=lambda W: torch.cat((W / 2, W / 2)))
    return changed.having(hidden=2 * case.mlp.hidden)


def _reversed(case: Case, axis: int, *names: str) -> Case:
    """The case with some of its weights in reverse order along an axis."""
    return _with(case, **dict.fromkeys(names, lambda w: w.flip(axis)))


_RESCALED = Relation(
    "update with W_Q times c and W_K over c (c = 2, -2 by heads) = update",
    lambda case: _with(case, W_Q=lambda w: w * _by_head(w), W_K=lambda w: w / _by_head(w)),
    half=lambda case: _with(case, W_Q=lambda w: w * _by_head(w)),
)
_HOTTER = Relation(
    "update with A and tau doubled and the step size halved = update",
    lambda case: _hotter(case, 0.5),
    half=lambda case: _with(case, W_K=lambda w: 2 * w, diagonal=lambda d: 2 * d),
)
_HEADS_TURNED = Relation(
    "update with the heads shifted cyclically by one = update",
    lambda case: _with(case, **dict.fromkeys(led_by_heads(case), lambda w: w.roll(1, 0))),
)
_FEATURES_TURNED = Relation(
    "update with every head's features reversed = update",
    lambda case: _reversed(case, 1, "W_Q", "W_K"),
    half=lambda case: _reversed(case, 1, "W_Q"),
)
_ROTATED = Relation("update of the rotated case = rotated update", _rotated, _turned)
_SHIFTED = Relation(
    "update with every bias increased by one = update",
    lambda case: _with(case, to_self=lambda b: b + 1, to_others=lambda b: b + 1),
    half=lambda case: _with(case, to_self=lambda b: b + 1),
)
_ROWS_TURNED = Relation(
    "update with the rows in reverse order = reversed update",
    lambda case: replace(case, x=case.x.flip(0), h=case.h.flip(0)),
    lambda u: u.flip(0),
)
_LOUDER = Relation(
    "update with the gain and tau doubled = update",
    lambda case: _with(case, gain=lambda g: 2 * g).having(temperature=2 * case.attention.tau),
    half=lambda case: _with(case, gain=lambda g: 2 * g),
)
_FACTORS_SWAPPED = Relation(
    "update with U and V exchanged = update",
    lambda case: replace(case, weights={**case.weights, "P_U": case.weights["P_V"], "P_V": case.weights["P_U"]}),
)
_SLOWER = Relation(
    "update with half the step size = half the update",
    lambda case: case.having(step_size=case.layer_config.step_size / 2),
    lambda update: update / 2,
)
_GATE_TURNED = Relation(
    "update with W times -2 = -2 times the update", lambda case: _with(case, W=lambda w: -2 * w), lambda u: -2 * u
)
_UNITS_TURNED = Relation(
    "update with the hidden units reversed = update",
    lambda case: _reversed(case, 0, "V", "W"),
    half=lambda case: _reversed(case, 0, "V"),
)
_UNITS_SPLIT = Relation("update with every hidden unit duplicated and W halved = update", _split)
_EXACTING = (_ROTATED, _ROWS_TURNED, _SLOWER)  # what noise cannot keep up with: x itself changes, or the update


def _low_rank(kinds: tuple[PreconditionerConfig, ...]) -> tuple[PreconditionerConfig, ...]:
    return tuple(kind for kind in kinds if kind.kind == "low-rank")


def _few_bits(case: Case) -> Case:
    """Every number rounded to the eight bits of bfloat16, so that sums of a few numbers are exact in float64."""
    return case.to(torch.bfloat16).to(torch.float64)


def _repeated(tokens: Tensor) -> Tensor:
    return tokens[:, :1].expand_as(tokens).contiguous()


def _through(effect: Effect, budget: Tensor) -> Tensor:
    """A bound on what the effect makes of errors of that size, whatever their signs."""
    if effect is _turned:
        return (budget @ _orthogonal(budget.shape[-1]).abs().mT).abs()
    return effect(budget).abs()


def _same(case: Case, other: Case) -> bool:
    """Whether nothing but options was changed."""
    if case.config != other.config:
        return False
    pairs = [(case.x, other.x), (case.h, other.h), *((w, other.weights[name]) for name, w in case.weights.items())]
    return all(torch.equal(a, b) for a, b in pairs)
