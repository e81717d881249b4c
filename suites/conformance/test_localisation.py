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

# by part, the mutants that have it wrong, as the zoo states their faults; several parts where a fault is in each
PARTS: Mapping[str, str] = {
    "scale of the update": "ascent mlpascent",
    "value path": "untied-values values-from-the-state",
    "output projection": "untied-output half-tied-output",
    "W_Q and W_K": "queries-and-keys-swapped",
    "linear path":
        "reversed-output-features output-of-the-next-head one-in-abillion last-head-forgotten "
        "last-unit-forgotten",
    "sum over heads": "last-head-forgotten mean-over-heads",
    "temperature": "model-dimension-temperature squared-temperature",
    "softmax": "softmax-over-queries unnormalised-softmax softmax-over-heads",
    "mask": "own-token-hidden sees-the-next-token not-causal oldest-token-hidden own-key-twice",
    "attention weights": "own-key-twice unnormalised-softmax softmax-over-heads",
    "score": "negated-scores capped-logits transposed-score-matrix keys-normalised queries-from-the-memory",
    "size of the logits": "clipped-logits softmax-without-shift",
    "step size": "step-size-twice",
    "residual": "residual-scaled starts-at-the-memory",
    "batch rows": "batch-leans",
    "diagonal, value path": "score-only-diagonal diagonal-twice-in-the-values diagonal-reads-the-own-token",
    "diagonal, score": "value-only-diagonal diagonal-twice-in-the-scores",
    "diagonal": "diagonal-of-the-first-head diagonal-once-for-all-heads",
    "diagonal with rotary": "rotary-loses-the-diagonal",
    "bias": "alibi-favours-the-distant self-and-cross-swapped",
    "rotary, value path": "unrotated-values output-stays-rotated",
    "preconditioner": "half-the-cross-term divides-by-p averaged-preconditioners",
    "step count with preconditioner": "preconditions-once",
    "norm": "norm-missing norm-afterwards norm-of-the-memory",
    "norm with preconditioner": "folded-gain-after-p",
    "activation": "tanh-for-erf swish-of-another-slope derivative-for-activation",
    "down projection": "untied-down",
    "V and W": "gate-and-up-swapped",
    "sum over units": "last-unit-forgotten",
    "gate": "wrong-factor-activated gate-reads-the-state",
    "token mixing": "tokens-share-ascale",
    "memory": "memory-moves",
    "recursion": "memory-moves decaying-steps",
    "step count": "at-most-two-steps one-step-more",
    "block": "block-starts-at-the-norm parallel-block",
    "cache": "stale-cache",
    "stated energy": "mean-energy energy-without-constant",
    "dtype": "always-float32",
    "precision": "always-float32",
    "one call has two answers": "counts-its-calls",
}  # fmt: skip
WRONG = {id_: [part for part, ids in PARTS.items() if id_ in ids.split()] for id_ in " ".join(PARTS.values()).split()}
WRONG |= {"edits-its-input": []}  # which is in no part


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
