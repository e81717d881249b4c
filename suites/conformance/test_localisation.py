"""The part that a violation names is the part that is wrong; easy mistakes are recognised."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import check_implementation, energy_layer, implementation
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.asking.boxes import form_of
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.edited import edited, module_of
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import advice
from cemverify.conformance.implementations.plain import Plain
from cemverify.conformance.judging.localisation.bench import WrongPart
from cemverify.conformance.judging.localisation.layers import localise_layer
from cemverify.conformance.judging.localisation.localise import localise
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import Offer, by_id
from cemverify.conformance.questions.black_boxes import scattered
from cemverify.conformance.questions.cases import dense_case
from cemverify.power.mutants import Mutant
from cemverify.power.mutants.base import plain_but
from suites.kit.judging import judged, mutant, searched
from suites.kit.source import ROOT

# by part, the mutants in which it is wrong, by their stated faults; several parts if a fault is in each
PARTS: Mapping[str, str] = {
    "scale of the update": "ascent mlp-ascent",
    "value path": "untied-values values-from-the-state",
    "output projection": "untied-output half-tied-output",
    "W_Q and W_K": "queries-and-keys-swapped",
    "linear path":
        "reversed-output-features output-of-the-next-head one-in-a-billion last-head-forgotten "
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
    "token mixing": "tokens-share-a-scale",
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
WRONG |= {"edits-its-input": []}  # its fault is in no part
SURE = {"score-only-diagonal", "untied-output", "sees-the-next-token", "divides-by-p"}  # these must be located


def located(mutant: Mutant) -> WrongPart | None:
    """The part found wrong in a mutant whose named property is violated on a scattered case."""
    search = searched(mutant.subject(), by_id(mutant.property), 200)
    assert search.tally.violation is not None, f"{mutant.id} was not found violated"
    return localise(search.caller, search.tally.violation.question)


def test_two_options_that_are_wrong_together_are_told_and_no_cache_where_x_that_is_h_is_wrong() -> None:
    part: Any = located(mutant("preconditions-once"))
    told = (
        "with all other options off, it is wrong with T > 1 and a preconditioner together, and right without either"
    )
    assert (part.name, part.because) == ("step count with preconditioner", f"{told} of the two")

    def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
        return reference.attention(x, h, weights, config) * (1.001 if torch.equal(x, h) else 1.0)

    mine = implementation(attention=attention, decode=lambda h, w, c: attention(h, h, w, c))
    assert localise(Caller(mine), dense_case(AttentionConfig(4, 2, 2), 1, 4, 0)) is None


def _but(**parts: Any) -> Any:
    """The plain layer with other parts, each of which gets the usual ones first."""
    return plain_but(parts).subject()


class _InPairs(Plain):
    def rotate(self, x: Tensor, rows: Tensor, c: Any, sign: float) -> Tensor:
        def halves(array: Tensor, *shape: int) -> Tensor:
            return array.reshape(*array.shape[:-1], *shape).mT.flatten(-2)

        return halves(super().rotate(halves(x, -1, 2), rows, c, sign), 2, -1)


class _Interleaved(Plain):
    def attention_direction(self, x: Tensor, h: Tensor, w: Any, c: Any) -> Tensor:
        own = {name: w[name].flatten(0, 1).unflatten(0, (-1, c.heads)).transpose(0, 1) for name in ("W_Q", "W_K")}
        return super().attention_direction(x, h, own, c)


_AttentionOnly, _Rotary = AttentionConfig(6, 2), AttentionConfig(8, 2, position="rotary")
_Block = BlockConfig(_AttentionOnly, MLPConfig(6, 4))


@pytest.mark.parametrize(
    ("subject", "config", "name", "because"),
    [
        (mutant("unrotated-values").subject(), _Rotary, "rotary, value path", "the values are not rotated, as in"),
        (_InPairs().subject(), _Rotary, "rotary, pairs", "it pairs features 2r and 2r + 1; the contract pairs r and"),
        (mutant("transposed-score-matrix").subject(), _AttentionOnly, "score",
         "with W_K for the queries and W_Q for the keys"),
        (_Interleaved().subject(), _AttentionOnly, "heads", "rows k, k + K, k + 2K ... of W_Q and W_K"),
        (_but(hidden=lambda _, i, j: j >= i), _AttentionOnly, "mask",
         "token 0 reads nothing: the mask hides its own key"),
        (mutant("model-dimension-temperature").subject(), _AttentionOnly, "temperature",
         "the square root of 6, the model dimension, not of 3, the head dimension"),
        (mutant("untied-output").subject(), _Block, "output projection", "in the block's attention: "),
        (implementation(mlp=lambda x, h, w, c: h + c.step_size * (h @ w["V"].T * F.silu(h @ w["W"].T)) @ w["V"]),
         MLPConfig(3, 2), "gate", "V and W are exchanged: it applies the activation to W h instead of V h"),
        (mutant("untied-down").subject(), MLPConfig(3, 2), "down projection",
         "W where V belongs: it must be the transpose of the gate projection, V"),
        (_but(sigma=lambda _, z, c: torch.tanh(z)), _Block, "activation",
         "in the block's MLP: with silu it returns the result for tanh"),
    ],
)  # fmt: skip
def test_a_layer_that_starts_at_its_own_input_is_told_what_it_does_instead(
    subject: Any, config: Any, name: str, because: str
) -> None:
    case = dense_case(config, 1, 4, 0)
    alone = subject if config is not _Block else implementation(block=subject.functions["block"])
    caller = Caller(replace(alone, not_offered={**alone.not_offered, "start": "it has one argument"}))
    part: Any = localise(caller, replace(case, x=case.h))
    assert part.name == name
    assert because in part.because


_FORGETS = "        S = m.g[:, t, None, None].exp() * S\n"


@pytest.mark.parametrize(
    ("right", "wrong", "name", "because"),
    [
        ("(m.beta[:, t, None] *", "(m.beta[:, t, None].sigmoid() *", "beta",
         "it does what is declared with sigmoid(beta) in place of beta"),
        (_FORGETS, _FORGETS.replace(".exp()", ""), "g", "given exp(g) in place of g, it does what is declared"),
        (_FORGETS, _FORGETS.replace("m.g[:, t, None, None]", "(-m.g[:, t, None, None])"), "forgetting",
         "the state is divided by what it must be multiplied by"),
        (_FORGETS, _FORGETS.replace("* S", "* S if t else S"), "the first token", "it forgets nothing"),
        ("* off\n", "* off * (1 if t < 15 else 1.01)\n", "long rows", "up to 15 tokens, and wrong from 16 on"),
        ("m.q[:, t, None] @ S / K**0.5)", "m.q[:, t, None] @ S)", "q", "with q sqrt(n), n = 4 in place of q"),
    ],
)  # fmt: skip
def test_a_loop_over_tokens_is_told_what_it_does_instead(right: str, wrong: str, name: str, because: str) -> None:
    text = (ROOT / "examples" / "online_layers" / "gated_delta_rule.py").read_text()

    def told(source: str) -> Any:
        layer: EnergyLayer = module_of(source, "gated").mine
        return localise_layer(Caller(layer), scattered(form_of(layer), 7, {"J": 20}))

    part = told(edited(text, (right, wrong)))
    assert part.name == name
    assert because in part.because
    assert told(text) is None


@pytest.mark.slow
def test_no_mutant_is_located_wrongly_and_most_are_located(pytestconfig: pytest.Config) -> None:
    every = 1 if pytestconfig.getoption("--thorough") else 4
    chosen = {id_: parts for n, (id_, parts) in enumerate(WRONG.items()) if n % every == 0 or id_ in SURE}
    rightly, unlocated, wrongly = list[str](), list[str](), list[str]()
    for id_, parts in chosen.items():
        part = located(mutant(id_))
        if part is None:
            unlocated.append(id_)
        else:
            assert part.because, id_  # the identity that shows it
            (rightly if part.name in parts else wrongly).append(f"{id_}: {part.name}")
    assert not wrongly
    assert SURE.isdisjoint(unlocated)
    assert len(rightly) >= 0.85 * len(chosen), unlocated


@pytest.mark.parametrize("layer", ["attention", "mlp"])
def test_nothing_is_named_in_a_correct_implementation(layer: str) -> None:
    for seed in range(5):
        case: Any = by_id(f"gradient/{layer}/any-options").questions.scattered(Offer(), seed)
        assert localise(Caller(reference.reference), case) is None


def test_a_softmax_in_float32_is_called_that_and_not_a_wrong_formula() -> None:
    narrow = _but(softmax=lambda _, logits: torch.softmax(logits, -1, dtype=torch.float32).to(logits.dtype))
    record = judged(narrow, "gradient/attention/plain", examples=12)
    assert record.part == "precision"
    assert "softmax(..., dtype=torch.float32)" in str(record.because)


def test_blocks_of_hidden_units_that_read_each_other_are_told_by_their_size() -> None:
    class InBlocks(Plain):
        def mlp(self, x: Tensor, h: Tensor, w: Any, c: Any) -> Tensor:
            for V, W in zip(*(w[name].split(16) for name in "VW"), strict=True):  # for all steps
                x = super().mlp(x, h, {"V": V, "W": W}, c)
            return x

    record = judged(InBlocks().subject(), "gradient/mlp/relu2")
    assert (record.part, record.because) == ("number of hidden units", "16 hidden units are right, 17 are wrong")


def test_errors_that_libraries_raise_are_told_what_to_do() -> None:
    heads = AssertionError("embed_dim must be divisible by num_heads")
    assert "add 'head-dim' to not_offered" in advice(heads, torch.float64)
    assert advice(ValueError("something else"), torch.float64) == ""
    assert "'gain' is given only with an option (norm: scalar" in advice(KeyError("attention.gain"), torch.float64)
    # mixed dtypes under another default dtype are distinguished from those of weights
    dtypes = RuntimeError("expected scalar type Float but found Double")
    assert "torch.eye(n, dtype=x.dtype)" in advice(dtypes, torch.float32, torch.float64)
    assert "convert the weights" in advice(dtypes, torch.float64, torch.float32)


# --- easy mistakes are named for what they are --------------------------------------------------------


bias = torch.tensor([0.5, -0.25, 0.0], dtype=torch.float64)
W = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
values = torch.nn.Parameter(W.clone())
outputs = torch.nn.Parameter(W.T.clone())


def _layer(update: Any, **more: Any) -> EnergyLayer:
    return energy_layer(update=update, energy=lambda x, m: ((x - m) ** 2).sum(-1) / 2, dim=3, **more)


def _scores(x: Tensor, m: Tensor, mask: Tensor | None, fill: float) -> Tensor:
    scores = x @ m.mT  # (B, J, J)
    return scores if mask is None else scores.masked_fill(~mask[:, None], fill)


def _attention(x: Tensor, m: Tensor, mask: Tensor | None = None, *, fill: float = -torch.inf) -> Tensor:
    return torch.softmax(_scores(x, m, mask, fill), -1) @ m


def _log_sum(x: Tensor, m: Tensor, mask: Tensor | None = None, *, fill: float = -torch.inf) -> Tensor:
    return -torch.logsumexp(_scores(x, m, mask, fill), -1)


def _masked(attention: Any, energy: Any) -> EnergyLayer:
    return energy_layer(update=attention, energy=energy, dim=3, masked=True, causal=False)


_zeros = _masked(*(functools.partial(f, fill=0.0) for f in (_attention, _log_sum)))
_deaf = _masked(lambda x, m, mask: _attention(x, m), lambda x, m, mask: _log_sum(x, m))


_counter = torch.nn.Module()
_counter.register_buffer("u", torch.zeros(3, dtype=torch.float64))


_drop = torch.nn.Dropout(0.5)


def _moving(x: Tensor, m: Tensor) -> Any:
    """Has a buffer that changes a little with each call, in eval mode too."""
    u: Any = _counter.u
    u += 1e-6
    return m - x + u


def _shifted_from_18(x: Tensor, m: Tensor) -> Tensor:
    scores = x @ m.mT
    return torch.softmax(torch.cat((scores[..., :17], scores[..., 17:] + 0.01), -1), -1) @ m


def _reading(update: Any) -> EnergyLayer:
    return energy_layer(update=update, energy=_log_sum, state=("J", 3), memory=("M", 3), permutable=True)


def _repelling(x: Tensor, beyond: float) -> Tensor:
    """The force of sum 1 / r^2 over pairs, doubled beyond a distance."""
    d = x[:, :, None] - x[:, None]
    r = d.norm(dim=-1) + torch.eye(x.shape[1])
    force: Tensor = 2 * (d * (torch.where(r > beyond, 2, 1) / r**4)[..., None]).sum(2)
    return force


def _apart(beyond: float) -> EnergyLayer:
    i, j = torch.triu_indices(4, 4, 1)
    return energy_layer(
        update=functools.partial(_repelling, beyond=beyond), state=(4, 3), memory=None, energy_per="sequence",
        energy=lambda x: (1 / (x[:, i] - x[:, j]).square().sum(-1)).sum(-1),
    )  # fmt: skip


_ENERGY, _MASK, _TWICE = "gradient/layer/energy", "structure/layer/mask", "one call has two answers"
_NO_GRADIENT = "not the stated energy's gradient"
_RARE = ("softplus", "a block of keys", "a value", "one row")
# a layer, the tested properties, the cause that is named first, and words of its reason
_ROWS: dict[str, tuple[Any, str, str, str]] = {
    "bias": (_layer(lambda x, m: m - x + bias), _ENERGY, "an additive bias", "(0.5, -0.25, 0)"),
    "sign": (_layer(lambda x, m: x - m), _ENERGY, "a constant factor", "climbed"),
    "a head": (
        energy_layer(update=lambda x, m: (m - x) * torch.tensor([1, 1, 1.5, 1.25], dtype=x.dtype), dim=4,
                     energy=lambda x, m: ((x - m) ** 2).sum(-1) / 2), _ENERGY, "entries 2 and 3 of the last axis",
        "of the last axis (4) are wrong, even with values exchanged: the second of 2 equal parts, as heads are"),
    "uphill": (energy_layer(update=lambda x, m: x - m, energy=lambda x, m: ((x - m) ** 4).sum(-1) / 4, dim=3),
               _ENERGY, "direction of the update", "uphill"),
    "mask of zeros": (_zeros, _MASK, "mask", "a mask multiplies the logits"),
    "mask unused": (_deaf, _MASK, "mask", "it is not used"),
    "a value": (_layer(lambda x, m: torch.where(x.abs() > 2, 1.01, 1.0) * (m - x)),
                _ENERGY, _NO_GRADIENT, "the error begins where |x| > 2"),
    "a distance": (_apart(1.5), _ENERGY, _NO_GRADIENT, "two rows of x are more than 1.5 apart"),
    "not defined at 0": (_apart(torch.inf), _ENERGY, "the declared energy", "other examples nothing is violated"),
    "one row": (_reading(lambda x, m: _attention(x, m) * (1.01 if len(x) == 1 else 1)), _ENERGY,
                _NO_GRADIENT, "only with one row"),
    "a length": (_reading(_shifted_from_18), "extremes/layer/long-rows", _NO_GRADIENT, "where M > 17"),
    "edited": (_layer(lambda x, m: m.mul_(0.5) - x), f"{_ENERGY} structure/layer/inputs-unchanged",
               "an argument that a call edits",
               "memory: the update is right for the arguments as the call leaves them"),
    "backward": (  # it doubles the gradient
        energy_layer(update=lambda x, m: m @ outputs.detach() - 2 * m @ outputs, dim=3, not_offered=("vmap",),
                     parameters={"outputs": outputs}, energy=lambda x, m: (x * (m @ outputs)).sum(-1)),
        "training/layer/parameters", "the backward pass", "the update is right, but its gradient with respect to ou"),
    "untied": (
        energy_layer(update=lambda x: torch.tanh(x @ values.T) @ outputs.T,
                     energy=lambda x: -torch.log(torch.cosh(x @ values.T)).sum(-1),
                     state=("J", 3), memory=None, parameters={"values": values, "outputs": outputs}),
        "training/layer/parameters", "untied parameters", "a weight may be stored twice instead of tied"),
    "dropout": (_layer(lambda x, m: _drop(m - x)), f"{_ENERGY} structure/layer/determinism", _TWICE, "call eval()"),
    "softplus": (mutant("preconditioner-turns-linear-at-twenty").subject(),
                 "extremes/attention/preconditioner-every-magnitude", "preconditioner",
                 "threshold of torch's F.softplus"),
    "buffer": (_layer(_moving), "structure/layer/inputs-unchanged", _TWICE,
               "no call may change a buffer"),
    # the first block of 64 keys is forgotten in the second
    "a block of keys": (_but(hidden=lambda _, i, j: (j > i) | ((i >= 64) & (j < 64))), "gradient/attention/long-rows",
                        "mask", "token 64 sees [64]"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", _ROWS)
def test_a_mistake_is_named(mistake: str) -> None:
    layer, ids, name, because = _ROWS[mistake]
    diagnosis = check_implementation(layer, properties=ids.split(), examples=60 if mistake in _RARE else 12).diagnosis
    (cause, *_) = diagnosis.causes if diagnosis is not None else ()
    assert cause.name == name
    assert because in cause.because


def _descending(taken: int, size: float, **declared: Any) -> EnergyLayer:
    """Steps down a sum of (x - m)^4 / 4, where long ones lead to infinity."""

    def update(x: Tensor, m: Tensor) -> Tensor:
        y = x
        for _ in range(taken):
            y = y - size * (y - m) ** 3
        return y - x

    return energy_layer(update=update, energy=lambda x, m: ((x - m) ** 4).sum(-1) / 4, dim=3, **declared)


@pytest.mark.parametrize(
    ("layer", "name", "declare"),
    [
        (_descending(3, 0.05, steps=3), "the declared steps", "declare step_size=0.05,"),
        (_descending(3, 0.05, step_size=0.05), "the declared steps", "declare steps=3,"),
        (_descending(3, 0.05), "the declared steps", "1 and 1 are declared: declare steps=3 and step_size=0.05,"),
        (_descending(1, 0.05), "the declared steps", "declare step_size=0.05,"),
        (_descending(2, 0.05, step_size=0.05, steps=3), "number or size of the steps", "declare steps=2,"),
        (_descending(1, 0.05, step_size=0.15), "a constant factor", "0.3333333333"),
        (_descending(1, 0.1, steps=3, step_size=0.05), "not the stated energy's gradient", "it descends"),
        (_descending(3, -0.05, steps=3, step_size=0.05), "direction of the update", "uphill"),
    ],
)
def test_steps_that_are_not_declared_are_told_and_not_blamed_on_the_update(
    layer: EnergyLayer, name: str, declare: str
) -> None:
    question = scattered(form_of(layer), 7, {"J": 3})
    part: Any = localise_layer(Caller(layer), question, numbers=(0.05, 4.0, 64.0))
    assert part.name == name
    assert declare in part.because


def test_an_exception_gets_no_part_and_a_view_is_told_to_reshape() -> None:
    layer = _layer(lambda x, m: 2 * (m.view(-1).view(m.shape) - x))
    assert judged(layer, _ENERGY, examples=30).part == "the declared steps"
    record = judged(layer, "structure/layer/windows", examples=30)
    assert (record.verdict, record.cause, record.part) == (Verdict.VIOLATED, "raised", None)
    assert "use reshape" in str(record.reason)


def test_a_cache_that_no_checkpoint_holds_may_be_filled_by_a_call() -> None:
    class Cached(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("table", torch.empty(0), persistent=False)

        def forward(self, x: Tensor, m: Tensor) -> Tensor:
            self.table = torch.arange(x.shape[1])
            return m - x

    assert judged(_layer(Cached()), "structure/layer/inputs-unchanged", examples=12).verdict == Verdict.HOLDS


def test_a_wrong_formula_is_not_blamed_on_the_cache() -> None:
    """Updates are ten thousand times as large: sums are rounded at that size."""
    loud = _but(advance=lambda usual, x, heads, w, c: usual.advance(x, 1e4 * heads, w, c))
    assert judged(loud, "structure/decode/every-prefix").verdict == Verdict.HOLDS
    assert judged(loud, "precision/attention/bfloat16").part != "cache"
