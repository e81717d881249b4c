"""The part that a violation names is the part that is wrong; where it cannot be told, none is named."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch

from cemverify import check_implementation, implementation
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.faults import advice
from cemverify.conformance.judging.localisation.bench import WrongPart
from cemverify.conformance.judging.localisation.localise import localise
from cemverify.conformance.properties import Offer, by_id, catalogue
from cemverify.conformance.questions.cases import Case
from cemverify.power.mutants import Mutant, mutants
from suites.kit.judging import mutant, searched

# what each of these has wrong, by its fault as the zoo states it; a second name where the fault is in both
WRONG: Mapping[str, tuple[str, ...]] = {
    "ascent": ("scale of the update",),
    "untied-values": ("value path",),
    "untied-output": ("output projection",),
    "half-tied-output": ("output projection",),
    "queries-and-keys-swapped": ("W_Q and W_K",),
    "reversed-output-features": ("linear path",),
    "output-of-the-next-head": ("linear path",),
    "one-in-abillion": ("linear path",),
    "last-head-forgotten": ("linear path", "sum over heads"),
    "mean-over-heads": ("sum over heads",),
    "model-dimension-temperature": ("temperature",),
    "squared-temperature": ("temperature",),
    "softmax-over-queries": ("softmax",),
    "own-token-hidden": ("mask",),
    "sees-the-next-token": ("mask",),
    "not-causal": ("mask",),
    "oldest-token-hidden": ("mask",),
    "own-key-twice": ("attention weights", "mask"),
    "negated-scores": ("score",),
    "clipped-logits": ("size of the logits",),
    "capped-logits": ("score",),
    "softmax-without-shift": ("size of the logits",),
    "transposed-score-matrix": ("score",),
    "keys-normalised": ("score",),
    "queries-from-the-memory": ("score",),
    "step-size-twice": ("step size",),
    "residual-scaled": ("residual",),
    "starts-at-the-memory": ("residual",),
    "batch-leans": ("batch rows",),
    "score-only-diagonal": ("diagonal, value path",),
    "value-only-diagonal": ("diagonal, score",),
    "diagonal-twice-in-the-scores": ("diagonal, score",),
    "diagonal-twice-in-the-values": ("diagonal, value path",),
    "diagonal-reads-the-own-token": ("diagonal, value path",),
    "diagonal-of-the-first-head": ("diagonal",),
    "diagonal-once-for-all-heads": ("diagonal",),
    "rotary-loses-the-diagonal": ("diagonal with rotary",),
    "alibi-favours-the-distant": ("bias",),
    "self-and-cross-swapped": ("bias",),
    "unrotated-values": ("rotary, value path",),
    "output-stays-rotated": ("rotary, value path",),
    "half-the-cross-term": ("preconditioner",),
    "divides-by-p": ("preconditioner",),
    "averaged-preconditioners": ("preconditioner",),
    "preconditions-once": ("step count with preconditioner",),
    "norm-missing": ("norm",),
    "norm-afterwards": ("norm",),
    "norm-of-the-memory": ("norm",),
    "folded-gain-after-p": ("norm with preconditioner",),
    "mlpascent": ("scale of the update",),
    "tanh-for-erf": ("activation",),
    "swish-of-another-slope": ("activation",),
    "derivative-for-activation": ("activation",),
    "untied-down": ("down projection",),
    "gate-and-up-swapped": ("V and W",),
    "last-unit-forgotten": ("linear path", "sum over units"),
    "wrong-factor-activated": ("gate",),
    "tokens-share-ascale": ("token mixing",),
    "memory-moves": ("memory", "recursion"),
    "decaying-steps": ("recursion",),
    "at-most-two-steps": ("step count",),
    "one-step-more": ("step count",),
    "block-starts-at-the-norm": ("block",),
    "parallel-block": ("block",),
    "stale-cache": ("cache",),
    "mean-energy": ("stated energy",),
    "energy-without-constant": ("stated energy",),
    "always-float32": ("dtype", "precision"),
    "counts-its-calls": ("one call has two answers",),
    "edits-its-input": (),
    "unnormalised-softmax": ("softmax", "attention weights"),
    "softmax-over-heads": ("softmax", "attention weights"),
    "values-from-the-state": ("value path",),
    "gate-reads-the-state": ("gate",),
}


def located(mutant: Mutant) -> WrongPart | None:
    """What is said of a mutant whose named property was found violated on a scattered case."""
    search = searched(mutant.subject(), by_id(mutant.property), 200)
    assert search.tally.violation is not None, f"{mutant.id} was not found violated"
    return localise(search.caller, search.tally.violation.question)


@pytest.mark.slow
def test_no_mutant_is_located_wrongly_and_most_are_located(
    capsys: pytest.CaptureFixture[str], pytestconfig: pytest.Config
) -> None:
    zoo = {m.id: m for m in mutants()}
    assert zoo.keys() >= WRONG.keys()
    chosen = dict(list(WRONG.items())[:: 1 if pytestconfig.getoption("--thorough") else 2])
    rightly: list[str] = []
    unlocated: list[str] = []
    wrongly: list[str] = []
    for id_, parts in chosen.items():
        part = located(zoo[id_])
        if part is None:
            unlocated.append(id_)
        else:
            (rightly if part.name in parts else wrongly).append(f"{id_}: {part.name}")
    with capsys.disabled():
        print(
            f"\nlocalisation: {len(rightly)} of {len(chosen)} rightly, {len(unlocated)} not, {len(wrongly)} wrongly"
        )
    assert not wrongly
    assert len(rightly) >= 0.85 * len(chosen), unlocated


@pytest.mark.parametrize("id_", ["score-only-diagonal", "untied-output", "sees-the-next-token", "divides-by-p"])
def test_the_part_comes_with_the_sub_identity_that_shows_it(id_: str) -> None:
    part = located(mutant(id_))
    assert part is not None
    assert part.name in WRONG[id_]
    assert part.because


def test_nothing_is_named_in_a_correct_implementation() -> None:
    caller = Caller(reference.reference)
    for property_ in catalogue():
        if property_.id in ("gradient/attention/any-options", "gradient/mlp/any-options"):
            for seed in range(5):
                case = property_.questions.scattered(Offer(), seed)
                assert isinstance(case, Case)
                assert localise(caller, case) is None


def test_a_softmax_in_float32_is_called_that_and_not_a_wrong_formula() -> None:
    def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
        W_Q, W_K = weights["W_Q"], weights["W_K"]
        queries, keys = (torch.einsum("bjd,krd->bkjr", a, W) for a, W in ((x, W_Q), (h, W_K)))
        scores = queries @ keys.mT / config.temperature
        scores = scores + torch.full(scores.shape[-2:], -torch.inf, dtype=scores.dtype).triu(1)
        weight = torch.softmax(scores, -1, dtype=torch.float32).to(x.dtype)
        return x + torch.einsum("bkjr,krd->bjd", weight @ keys, W_Q)

    bare = ("steps", "step-size", "diagonal", "position", "preconditioner", "norm", "validation")
    mine = implementation(attention=attention, not_offered=bare)
    (record,) = check_implementation(mine, properties=["gradient/attention/plain"], examples=12)
    assert record.part == "precision"
    assert "softmax(..., dtype=torch.float32)" in str(record.because)


def _from_a_finite_maximum(x: Any, h: Any, weights: Any, config: Any) -> Any:
    """As an online softmax whose running maximum starts at -20."""
    W_Q, W_K = weights["W_Q"], weights["W_K"]
    keys = torch.einsum("bjd,krd->bkjr", h, W_K)
    later = torch.ones(h.shape[1], h.shape[1], dtype=torch.bool).triu(1)
    for _ in range(config.steps):
        scores = torch.einsum("bjd,krd->bkjr", x, W_Q) @ keys.mT / config.tau
        scores = scores.masked_fill(later, -torch.inf)
        terms = torch.exp(scores - scores.amax(-1, keepdim=True).clamp_min(-20.0))
        weight = terms / terms.sum(-1, keepdim=True).clamp_min(1e-300)
        x = x + config.step_size * torch.einsum("bkjr,krd->bjd", weight @ keys, W_Q)
    return x


@pytest.mark.parametrize("id_", ["gradient/attention/any-options", "recursion/attention/equals-descent"])
def test_large_logits_are_to_blame_and_no_option_that_makes_them_large(id_: str) -> None:
    bare = ("diagonal", "position", "preconditioner", "norm", "validation")
    mine = implementation(attention=_from_a_finite_maximum, not_offered=bare)
    (record,) = check_implementation(mine, properties=[id_])
    assert record.part == "size of the logits"


def test_heads_that_do_not_fit_a_module_are_told_what_to_declare() -> None:
    error = AssertionError("embed_dim must be divisible by num_heads")
    assert "put 'head-dim' into not_offered" in advice(error, torch.float64)
    assert advice(ValueError("something else"), torch.float64) == ""
