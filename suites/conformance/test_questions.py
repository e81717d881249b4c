"""Questions cover all pairs of options, contexts and sizes; a shrunk case is still a case of its property."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, islice, product
from typing import Any

import pytest
import torch

from cemverify import energy_layer, implementation
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.asking.boxes import form_of
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.contexts import answered_in
from cemverify.conformance.implementations.arrays import JAX
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.features import FEATURES
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.offered import applicable, not_offered
from cemverify.conformance.judging.search import PropertySearch
from cemverify.conformance.judging.verdicts import Verdict, asked_up_to
from cemverify.conformance.listeners.terminal import how_far
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.oracle.golden import energies_at, golden
from cemverify.conformance.properties import Property, by_id, catalogue
from cemverify.conformance.properties.base import Offer, Over
from cemverify.conformance.properties.layers.base import Cases
from cemverify.conformance.properties.sizes import windows
from cemverify.conformance.questions.cases import Case, Config, Layer, dense_case
from cemverify.conformance.questions.contexts import BETWEEN, RECORDED, Context, InContext, factors
from cemverify.conformance.questions.shrinking import smaller
from cemverify.conformance.questions.spaces import Space
from cemverify.processes.time_limits import CoreBudget
from suites.kit.judging import judged, mutant

STEPS = 16
TRIED = 8  # smaller forms considered before one is taken

pulled: EnergyLayer = energy_layer(
    update=lambda x, m: m - x, energy=lambda x, m: ((x - m) ** 2).sum(-1) / 2, dim=3,
    lagrangian=lambda x: (x**2).sum(-1) / 2,
)  # fmt: skip
OFFERS = {"CEM implementation": Offer(), "energy layer": Offer(layer=pulled)}


def barest(property_: Property, seed: int) -> Any:
    """The end of a random walk through smaller forms, like a search where all fail; None if none are scattered."""
    offer, choose = OFFERS[property_.kind], random.Random(seed)  # noqa: S311
    question = property_.questions.scattered(offer, seed)
    for _ in range(STEPS if question is not None else 0):
        forms = list(islice(property_.questions.smaller(offer, question), TRIED))
        if not forms:
            break
        question = choose.choice(forms)
    return question


DRAWN = [p for p in catalogue() if isinstance(p.questions, Over | Cases)]


@pytest.mark.parametrize("property_", DRAWN, ids=lambda p: p.id)
def test_the_barest_case_has_the_sizes_and_options_of_its_property(property_: Any) -> None:
    question, questions = barest(property_, 1), property_.questions
    if isinstance(questions, Over):
        case = question.case if isinstance(question, InContext) else question
        assert _within(questions.space, case)
    else:
        form, least = form_of(pulled), questions.least
        assert question.batch >= least.get("B", 1)
        assert question.x["x"].shape[1] >= max(form.shortest, least.get("J", 1))


def _within(space: Space, case: Case) -> bool:
    options = {**{name: (value,) for name, value in space.options.items()}, **space.choices, "steps": space.steps}
    parts = [case.part("attention"), case.part("mlp")] if case.layer == "block" else [case]
    has = {(name, getattr(p.layer_config, name)) for p in parts for name in options if hasattr(p.layer_config, name)}
    return (
        (case.layer, space.apart or torch.equal(case.x, case.h)) == (space.layer, True)
        and (case.h.shape[0] >= space.batch and case.h.shape[1] >= space.tokens)
        and all(value in options[name] for name, value in has)
    )


# --- A default run covers every pair of options, because faults often need two of them ------


@pytest.mark.parametrize("layer", ["attention", "mlp", "block"])
def test_a_default_run_asks_every_pair_of_options(layer: Layer) -> None:
    property_ = by_id(f"gradient/{layer}/any-options")
    seen: set[tuple[str, Any, str, Any]] = set()

    def noting(caller: Any, case: Case) -> Evidence:
        options = sorted(_options(case).items())
        seen.update((a, u, b, v) for (a, u), (b, v) in combinations(options, 2))
        return Evidence.of(Comparison("asked", torch.zeros(1), torch.zeros(1), torch.zeros(1)))

    judge_property(reference, replace(property_, check=noting), Effort(shrink=False))
    assert not [pair for pair in _pairs(property_) if pair not in seen]


def asked_of_jax(property_: Property, count: int) -> list[Case]:
    """Cases as for an implementation that is compiled anew for each."""
    questions: list[Any] = [property_.questions.scattered(Offer(kind=JAX), seed) for seed in range(count)]
    questions = [question.case if isinstance(question, InContext) else question for question in questions]
    return [case for case in questions if isinstance(case, Case)]


@pytest.mark.parametrize("layer", ["attention", "mlp"])
def test_what_compiles_each_case_is_asked_all_pairs_of_options_in_few_shapes(layer: str) -> None:
    few, every = (
        by_id(f"gradient/{layer}/{'silu' if layer == 'mlp' else 'plain'}"),
        by_id(f"gradient/{layer}/any-options"),
    )
    cases = asked_of_jax(every, 80)
    met = {pair for case in cases for pair in combinations(sorted(_options(case).items()), 2)}
    compiled = replace(every, questions=Over(every.questions.space.compiled()))  # type: ignore[attr-defined]
    assert met >= {((a, u), (b, v)) for a, u, b, v in _pairs(compiled)}
    cases = asked_of_jax(few, 60)
    shapes = {(str(case.config), *(tuple(a.shape) for a in (case.x, *case.weights.values()))) for case in cases}
    assert 2 <= len(shapes) <= 8
    assert len({case.h.numpy().tobytes() for case in cases}) > 50


def _options(case: Case) -> dict[str, Any]:
    if case.layer == "block":
        return _options(case.part("attention")) | {"activation": case.part("mlp").mlp.activation}
    config = case.layer_config
    options: dict[str, Any] = {"norm": config.norm, "steps": config.steps}
    options["preconditioner"] = _kind(config.preconditioner)
    if case.layer == "mlp":
        return options | {"activation": case.mlp.activation}
    return options | {"diagonal": case.attention.diagonal, "position": case.attention.position}


def _kind(config: Any) -> str:
    return f"{config.kind}{' per head' if config.per_head else ''}"


def _pairs(property_: Any) -> Iterator[tuple[str, Any, str, Any]]:
    space = property_.questions.space
    values: dict[str, tuple[Any, ...]] = {**space.choices, "steps": space.steps}
    values["preconditioner"] = tuple(_kind(kind) for kind in space.preconditioners)
    for a, b in combinations(sorted(values), 2):
        yield from ((a, u, b, v) for u in values[a] for v in values[b])


# --- The whole table of contexts is covered, and each of its values does what it says ---


@pytest.mark.parametrize("layer", ["attention", "mlp"])
def test_a_default_run_asks_a_layer_in_every_pair_of_circumstances(layer: str) -> None:
    table: Any = by_id(f"contexts/{layer}/any-options").questions
    offered = factors(table.space, Offer())
    drawn = [table.scattered(Offer(), seed) for seed in range(table.rows(Offer()))]
    for one, other in combinations(("mode", "before", "arrays"), 2):
        met = {(getattr(q.context, one), getattr(q.context, other)) for q in drawn}
        assert met == set(product(offered[one], offered[other]))
    assert {(q.context.mode, max(q.sizes["T"], 1)) for q in drawn} == set(product(offered["mode"], offered["steps"]))
    between = {(q.context.mode, q.context.between) for q in drawn}
    assert between == {*product(RECORDED, BETWEEN), *product(set(offered["mode"]) - set(RECORDED), BETWEEN[:1])}
    one_array = {(q.context.mode, q.case.x is q.case.h) for q in drawn}
    # if x is h, it records no separate gradient
    assert one_array == {*product(offered["mode"], (False, True))} - {("x records gradients", True)}


def test_an_implementation_that_compiles_is_asked_a_case_in_every_context() -> None:
    table: Any = by_id("contexts/attention/any-options").questions
    drawn = [table.scattered(Offer(kind=JAX), seed) for seed in range(66)]
    assert len({str(question.case.config) for question in drawn}) == 1
    offered = factors(table.space, Offer(kind=JAX))
    assert {(q.context.mode, q.context.before) for q in drawn} == set(product(offered["mode"], offered["before"]))
    assert "in inference mode" not in offered["mode"]  # only torch has it


def test_the_smallest_violation_keeps_only_the_circumstances_that_it_takes_and_one_array_stays_one() -> None:
    smallest: list[Any] = []
    for name in ("windows-misread-when-mapped", "one-array-trained-once"):
        search = PropertySearch(Caller(mutant(name).subject()), by_id("contexts/mlp/any-options"), CoreBudget(60.0))
        search.look(Effort())
        smallest.append(getattr(search.tally.violation, "question", None))
    context, case = smallest[0].context, smallest[1].case
    # mapped arrays are windows already
    assert (context.mode, context.arrays, context.before) == ("mapped", "as usual", "as usual")
    assert case.x is case.h
    assert max(case.sizes.values()) <= 3


@pytest.mark.parametrize("unlocks", [False, True])
def test_an_array_that_was_read_only_must_stay_so(unlocks: bool) -> None:
    def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
        h.setflags(write=unlocks)  # it owns its data, so it can be made writable
        return x + h

    case = dense_case(AttentionConfig(4, 2, head_dim=2), 1, 3, 0)
    caller = Caller(implementation(attention=attention, arrays="numpy"))
    _, changed = answered_in(caller, "attention", case, Context(arrays="read-only"), case.x.shape)
    assert changed == (["h"] if unlocks else [])


# --- Large cases: verified in windows of their rows, shrunk by halving, and listed in every result -----

USED = {"T": 16, "J": 2304, "B": 64, "M": 2304, "K": 64, "D": 1024}
_PER_HEAD = PreconditionerConfig("low-rank", rank=2, per_head=True)


def attention(**options: Any) -> AttentionConfig:
    return AttentionConfig(5, 2, head_dim=4, temperature=1.0, step_size=0.3, **options)


@pytest.mark.parametrize(
    "config",
    [
        attention(position="rotary", steps=2),
        attention(position="alibi", diagonal="per-head", norm="folded", preconditioner=_PER_HEAD),
        attention(position="self-cross", diagonal="shared"),
        MLPConfig(5, 4, norm="channel", steps=2),
        BlockConfig(attention(position="rotary", norm="channel"), MLPConfig(5, 4, norm="channel")),
    ],
    ids=lambda config: type(config).__name__,
)
def test_a_window_has_the_answer_the_energy_and_the_budget_of_its_tokens_in_the_row(config: Config) -> None:
    case = dense_case(config, 2, 70, seed=3)
    if isinstance(config, BlockConfig):
        case = replace(case, x=case.h)
    whole, budget = golden(case), output_budget(case, torch.float64)
    parts = windows(case)
    assert len(parts) > 3
    for part in parts:
        # the position of its first token in the row, or the end of its memory
        first = next(j for j in range(case.x.shape[1]) if torch.equal(case.x[:, j], part.x[:, 0]))
        there = slice(first, first + part.x.shape[1])
        assert case.layer == "mlp" or there.stop == part.h.shape[1]
        assert torch.allclose(golden(part), whole[:, there], rtol=0, atol=1e-12)
        assert torch.allclose(output_budget(part, torch.float64), budget[:, there], rtol=0.05)
        if case.layer != "block":
            energies = energies_at(case, case.x)[:, there]
            assert torch.allclose(energies_at(part, part.x), energies, rtol=0, atol=1e-12)


def test_windows_stand_on_both_sides_of_every_power_of_two_and_rows_that_users_have_are_asked() -> None:
    case = dense_case(attention(), 1, 1025, seed=0)
    seen = {j for part in windows(case) for j in range(part.h.shape[1] - part.x.shape[1], part.h.shape[1])}
    assert {n + off for n in (16, 32, 64, 128, 256, 512) for off in (-1, 0, 1)} | {1023, 1024} <= seen
    reach = [p.questions.reach() for p in catalogue()]
    assert all(max(sizes.get(axis, 0) for sizes in reach) >= size for axis, size in USED.items())


def test_every_size_that_a_property_lists_is_asked_once_however_few_are_offered() -> None:
    property_ = by_id("sizes/mlp/hidden-units")
    record = judge_property(reference, property_, Effort(shrink=False))
    sizes = {property_.questions.scattered(Offer(), seed).sizes["M"] for seed in range(record.examples)}  # type: ignore[union-attr]
    assert record.verdict == Verdict.HOLDS
    assert record.asked_up_to == {"T": 1, "J": 5, "B": 2, "M": 2305, "D": 4}
    assert {1023, 1024, 1025, 2304, 2305} <= sizes
    questions, without = by_id("sizes/attention/tokens-float64").questions, Offer(frozenset(FEATURES) - {"attention"})
    assert (questions.rows(Offer()), questions.rows(without) in range(1, 11)) == (11, True)


def used(config: Any) -> set[str]:
    """The features that a question uses."""
    if isinstance(config, BlockConfig):
        return used(config.attention) | used(config.mlp)
    options = {f"{name}:{value}" for name, value in vars(config).items() if isinstance(value, str)}
    numbers = {"steps": config.steps > 1, "step-size": config.step_size != 1}
    if isinstance(config, AttentionConfig):
        numbers |= {"head-dim": config.heads * config.R != config.dim, "temperature": config.tau != config.R**0.5}
    return options | {name for name, is_used in numbers.items() if is_used}


@pytest.mark.parametrize(
    "features", ["step-size", "head-dim temperature", "steps norm:channel position:rotary activation:silu"]
)
def test_no_question_uses_what_is_not_offered(features: str) -> None:
    absent = dict.fromkeys(features.split(), "declared")
    for property_ in applicable("CEM implementation", catalogue()):
        if not_offered(property_, absent, torch.float64) is None:
            for seed in range(12):
                case = property_.questions.scattered(Offer(frozenset(absent)), seed)
                assert not isinstance(case, Case) or not used(case.config) & absent.keys(), (property_.id, seed)


def test_a_result_says_up_to_which_sizes_it_was_asked() -> None:
    ids = ("sizes/mlp/energy", "gradient/attention/wide")
    records = [judged(reference, id_, examples=6, shrink=False) for id_ in ids]
    assert records[0].describe()["asked_up_to"] == dict(records[0].asked_up_to) != {}
    together = asked_up_to(records)
    assert list(together) == ["T", "J", "B", "M", "K", "D"]
    words = how_far(RunFinished("mine", records, 1.0))
    assert words == "tested up to " + ", ".join(f"{letter} = {size}" for letter, size in together.items())
    assert how_far(RunFinished("mine", [replace(r, verdict=Verdict.VIOLATED) for r in records], 1.0)) == ""


def test_a_long_case_is_made_smaller_by_halves() -> None:
    case = dense_case(MLPConfig(4, 2304), 1, 2, seed=0)
    first = next(c for c in smaller(case, Space("mlp")) if c.mlp.hidden < 2304)
    assert first.mlp.hidden == 1152
    assert torch.equal(first.weights["V"], case.weights["V"][:1152])
