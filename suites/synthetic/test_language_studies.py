"""The paper's experiments as studies: what they compare, and how their results are read."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from cemverify.cem import presets as paper
from cemverify.results.statistics import Expected, compare
from suites.cem.test_models import COUNTS
from suites.synthetic.test_second_step import CHAIN
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus, open_corpus
from synthetic.studies.engine import trials
from synthetic.studies.engine.comparisons import MARGIN
from synthetic.studies.engine.designs import cost, parameters
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.tables import GPU_UTILISATION, H100_TFLOPS, costs, speed_at
from synthetic.studies.engine.trials import TrialRecord, compute_trial
from synthetic.studies.engine.tuning import StudyState, Tuned
from synthetic.studies.paper import EXPERIMENTS as STUDIES
from synthetic.studies.paper.rows import ALIBI, ATTENTION, EXPERIMENTS, FULL, MLP, RATES, ROTARY, Key, Variant
from synthetic.studies.paper.statements import read, reading_of
from synthetic.studies.paper.summary import bits_at, optimum
from synthetic.studies.paper.summary import summarise as summarise_models
from synthetic.training.frames import TINY, paper_recipe
from synthetic.training.looped import first_std, looped, paired
from synthetic.training.training import score


def plan(name: str, size: str = TINY, vocabulary: int = 256, **options: Any) -> Plan:
    return STUDIES[name].plan(None, vocabulary, size=size, **options)


def variant(study_plan: Plan, key: Key | None) -> Any:
    return study_plan.row(key)


# --- what is compared -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", EXPERIMENTS)
@pytest.mark.parametrize("size", [TINY, "86M"])
def test_every_study_is_complete(name: str, size: str) -> None:
    study_plan = plan(name, size, 256 if size == TINY else paper.VOCABULARY)
    names = [row.name for row in study_plan.rows]
    assert len(set(names)) == len(names)
    variants = [row for row in study_plan.rows if isinstance(row, Variant)]
    assert all(v.against is None or variant(study_plan, v.against).against in (None, v.key) for v in variants)
    wide = [(v.key, variant(study_plan, v.against)) for v in variants if isinstance(v.key, Key) and v.key.widened]
    assert wide
    for key, base in wide:
        assert parameters(variant(study_plan, key).design) / parameters(base.design) == pytest.approx(1, abs=0.02)
        narrow = study_plan.row(replace(key, widened=False))
        assert narrow is None or parameters(narrow.design) < parameters(base.design)


@pytest.mark.parametrize("size", COUNTS)
def test_the_papers_sizes_have_the_papers_parameters_and_recipe(size: str) -> None:
    llama, cem, *_ = COUNTS[size]
    study_plan = plan("learning-rate", size, paper.VOCABULARY)
    assert parameters(variant(study_plan, replace(ROTARY, rate=RATES[0])).design) == llama
    assert parameters(variant(study_plan, replace(FULL, rate=RATES[0])).design) == cem
    recipe = paper_recipe(size)
    assert 20 * llama <= recipe.tokens < 20 * llama + recipe.batch * recipe.context
    assert (recipe.learning_rate, recipe.precision, recipe.context, recipe.batch) == (2e-3, "bfloat16", 2048, 128)


def test_models_share_the_first_value_of_every_parameter_they_share() -> None:
    study_plan = plan("recursion")
    plain, rank = (
        paired(variant(study_plan, replace(ATTENTION[1], P=P)).design.looped, 3) for P in ("identity", "low rank")
    )
    llama = paired(variant(study_plan, ALIBI).design.looped, 3)
    theirs = dict(rank.named_parameters())
    for model in (plain, llama):
        common = [name for name, p in model.named_parameters() if name in theirs and theirs[name].shape == p.shape]
        assert {"embedding", "head", "blocks.0.attention.W_Q", "blocks.1.mlp.down"} <= set(common)
        assert all(torch.equal(model.get_parameter(name), theirs[name]) for name in common)
    other = paired(variant(study_plan, ALIBI).design.looped, 4)
    assert not torch.equal(other.embedding, llama.embedding)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_first_weights_are_spread_as_the_layers_draw_them(name: str) -> None:
    for row in plan(name).rows:
        config = row.design.looped
        drawn = looped(config, torch.Generator().manual_seed(0))
        ours = paired(config, 0)
        for name, parameter in drawn.named_parameters():
            std = first_std(name, config.model)
            mine = ours.get_parameter(name)
            if std is None:
                assert torch.equal(mine, parameter), name
                continue
            # the standard deviation of n normal values has a relative error of 1 / sqrt(2n)
            due = pytest.approx(std, rel=5 / math.sqrt(2 * parameter.numel()))
            assert [float(each.detach().std()) for each in (parameter, mine)] == [due, due], name


def test_a_layer_used_twice_is_two_layers_with_the_same_weights_and_costs_as_many() -> None:
    study_plan = plan("reuse")
    once, twice = variant(study_plan, ROTARY).design, variant(study_plan, replace(ROTARY, times=2)).design
    assert parameters(once) == parameters(twice)
    model: Any = paired(twice.looped, 0)
    tokens = torch.arange(12).reshape(1, 12)
    h = model.embedding[tokens]
    for block in model.blocks:
        h, _ = block.attention.residual(h)
        h = block.mlp.residual(block.mlp.residual(h))
    torch.testing.assert_close(model(tokens), model.norm(h) @ model.head.mT, rtol=0, atol=0)
    D, M, L = 64, 176, 2
    assert cost(twice, 64).forward - cost(once, 64).forward == L * 6 * D * M


# --- what it costs --------------------------------------------------------------------------------


def test_an_estimate_is_flops_over_speed() -> None:
    study_plan = plan("replace-mlp", "86M", paper.VOCABULARY, seeds=1)
    speed, _ = speed_at(True, None)
    assert speed == GPU_UTILISATION * H100_TFLOPS * 1e12
    V, D, L, M, J = 32000, 672, 8, 1792, 2048
    forward = 2 * V * D + L * (8 * D * D + 4 * J * D + 6 * D * M)  # per token, with dense attention
    found_cost = cost(variant(study_plan, ROTARY).design, J)
    assert found_cost.forward == forward
    assert 2.9 * forward < found_cost.training < 3.2 * forward  # backward is about twice forward
    hours = found_cost.training * study_plan.recipe.tokens / 1e12 / 3600
    first = costs("language-replace-mlp", study_plan, 1e12, "words").rows[0]
    assert list(first[:2]) == [ROTARY.title, "86,371,488"]
    # benchmarks/rehearsal compares what is kept for the backward pass with a count
    assert [*first[3:6], first[-2]] == ["1", f"{hours:,.1f}", "1.38 GB", "1.04 GB"]


# --- how it is run --------------------------------------------------------------------------------


def test_a_long_training_that_was_killed_goes_on_to_the_same_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    choice = CorpusChoice(CHAIN)
    corpus = PinnedCorpus(choice, open_corpus(choice, tmp_path / "corpora").digest)
    study_plan = plan("replace-mlp", TINY, 8, dims=paper.Size(16, 1, 2, 48), changes={"steps": 20, "context": 8})
    cell = study_plan.cell(variant(study_plan, MLP[0]), 0, "judging", 1.0, 4e-3, corpus, "cpu")
    assert (cell.part, cell.every) == ("whole", 1)
    cell = replace(cell, windows=4)
    monkeypatch.setenv("CEMVERIFY_CORPORA", str(tmp_path / "corpora"))
    whole = compute_trial(cell)
    assert [step for step, _ in whole["along"]] == list(range(1, 21))
    monkeypatch.setattr(trials, "LONG", 10)
    scored: list[int] = []

    def killed(*arguments: Any) -> torch.Tensor:
        scored.append(1)
        if len(scored) == 12:
            raise KeyboardInterrupt
        return score(*arguments)

    monkeypatch.setattr(trials, "score", killed)
    with pytest.raises(KeyboardInterrupt):
        compute_trial(cell)
    assert list((tmp_path / "corpora" / "checkpoints").glob("*.safetensors"))
    again = compute_trial(cell)
    assert {**again, "trained": ()} == {**whole, "trained": ()}
    assert again["trained"] == pytest.approx(whole["trained"])
    assert len(scored) == 12 + 9 + 1  # eleven were stored; the last is at the end
    assert not list((tmp_path / "corpora" / "checkpoints").iterdir())


# --- how it is read -------------------------------------------------------------------------------


def made(study_plan: Plan, bits: dict[Key, float], diverged: Key | None = None) -> list[Tuned]:
    """Made-up results: each model ends at these bits (by default 2), falling evenly from 8; seeds differ a little."""
    tuned = []
    for row in study_plan.rows:
        end, of_one = bits.get(cast(Key, row.key), 2.0), cost(row.design, study_plan.recipe.context)
        finals = {seed: end * (1 + 1e-3 * (-1) ** seed) for seed in range(study_plan.seeds)}
        sizes = (parameters(row.design), of_one.forward, of_one.training)
        judged: dict[int, Any] = {
            seed: TrialRecord(
                *sizes, (final,), (), None, None, (), (), "", along=((500, (8 + end) / 2), (1000, final))
            )
            for seed, final in finals.items()
        }
        if row.key == diverged:
            judged[0] = replace(judged[0], groups=(), diverged_at=600)
        tuned.append(Tuned(row, judged=judged))
    return tuned


def summarise(study_plan: Plan, models: list[Tuned]) -> list[Any]:
    return [*summarise_models(study_plan.recipe.steps, models)]


def test_at_equal_flops_a_model_is_read_where_it_has_spent_what_the_cheapest_spends() -> None:
    study_plan = plan("replace-mlp")
    rows = {row.model.row.key: row for row in summarise(study_plan, made(study_plan, {}))}
    costs = {key: row.model.records[0].training for key, row in rows.items()}
    for key, row in rows.items():
        assert row.affordable == pytest.approx(1000 * min(costs.values()) / costs[key])
    dear = rows[replace(MLP[0], widened=True)]
    record = dear.model.records[0]
    assert 500 < dear.affordable < 1000
    part = (dear.affordable - 500) / 500
    assert bits_at(record.along, dear.affordable) == pytest.approx(
        record.along[0][1] + part * (record.along[1][1] - record.along[0][1])
    )


def test_a_model_of_which_a_run_diverged_shows_no_mean_and_decides_nothing() -> None:
    study_plan = plan("replace-mlp")
    state = StudyState(tuple(made(study_plan, {}, diverged=MLP[0])))
    rows = summarise(study_plan, list(state.rows))
    row = next(row for row in rows if row.model.row.key == MLP[0])
    assert (row.model.diverged, row.finals, row.tokens) == (1, [], None)
    assert [statement.reading for statement in read("replace-mlp", state)] == ["undecided"]


def test_expectations_are_read_by_the_rules_of_the_ledger() -> None:
    """These rules have their own tests."""
    near, unclear = (compare(2 * bits, [1.0] * 6, MARGIN) for bits in ([0.9965, 0.997, 0.9975], [0.8, 1.0, 1.25]))
    kinds: tuple[Expected, ...] = ("better", "worse", "close", "no better")
    assert [reading_of(kind, near) for kind in kinds] == ["agrees", "disagrees", "agrees", "disagrees"]
    assert {reading_of(kind, comparison) for kind in kinds for comparison in (unclear, None)} == {"undecided"}


@pytest.mark.parametrize(
    ("once", "twice", "deep", "reading"),
    [(2.0, 2.0, 1.9, "agrees"), (2.0, 1.9, 1.9, "disagrees"), (2.0, 2.0, 2.0, "disagrees")],
)
def test_reuse_is_read_against_the_same_layer_once(once: float, twice: float, deep: float, reading: str) -> None:
    study_plan = plan("reuse")
    flat, steps = MLP
    bits = {flat: once, replace(ROTARY, times=2): 2.0, replace(flat, times=2): twice, steps: deep}
    assert read("reuse", StudyState(tuple(made(study_plan, bits))))[1].reading == reading


def test_the_best_rate_is_between_those_tried() -> None:
    log = [(math.log2(rate) - math.log2(3e-3)) ** 2 for rate in RATES]
    best = optimum(RATES, [1 + 0.01 * value for value in log])
    assert best.rate == pytest.approx(3e-3, rel=0.05)
    assert not best.at_edge
    assert optimum(RATES, [5.0, 4.0, 3.0, 2.0, 1.0]).at_edge


def test_tuned_models_are_compared_each_at_its_own_best_rate() -> None:
    study_plan = plan("learning-rate")
    curve = {RATES[0]: 2.2, RATES[1]: 2.1, RATES[2]: 2.0, RATES[3]: 2.1, RATES[4]: 2.2}
    moved = {RATES[0]: 2.3, RATES[1]: 2.2, RATES[2]: 2.1, RATES[3]: 2.0, RATES[4]: 2.1}
    bits = {replace(key, rate=rate): curve[rate] for key in (ROTARY, ALIBI) for rate in RATES}
    bits |= {replace(FULL, rate=rate): moved[rate] for rate in RATES}
    state = StudyState(tuple(made(study_plan, bits)))
    rows = summarise(study_plan, list(state.rows))
    at_one_rate = next(row for row in rows if row.model.row.key == replace(FULL, rate=RATES[2]))
    assert at_one_rate.tokens.conclusion == "worse"
    assert [statement.reading for statement in read("learning-rate", state)] == ["agrees", "agrees"]
