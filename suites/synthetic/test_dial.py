"""Depth as a dial in language models: T drawn in training, and chosen at test time."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cemverify.cem.beyond import Beyond
from cemverify.cem.layers import CEMGatedMLP, MLPConfig
from cemverify.cem.models import Block
from cemverify.runs.plain import plain, restore
from synthetic.corpora.chains import ChainSpec
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus, open_corpus
from synthetic.studies.depth_dial import STUDY
from synthetic.studies.depth_dial.rows import ALIKE, MOST, SUM, TEST_DEPTHS, own
from synthetic.studies.depth_dial.sentences import falls_up_to, picture, sentences, stopped, summarise
from synthetic.studies.engine.designs import Design, cost
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.stopping import STOPS, AtStop
from synthetic.studies.engine.study import StudyOutcome
from synthetic.studies.engine.trials import TrialRecord, compute_trial
from synthetic.studies.engine.tuning import StudyState, Tuned
from synthetic.training.frames import tiny_dims
from synthetic.training.looped import drawn_depth, paired, turn
from synthetic.training.recipe import RecipeChanges
from synthetic.training.steps import steps_taken

CHAIN = ChainSpec("hidden", 4, states=2, train=20_000, validation=400)
TOKENS = torch.arange(6).remainder(4)[None]


def small(**choices: Any) -> Plan:
    """The study of MLPs, as small as it can be."""
    changes = RecipeChanges(steps=6, batch=2, context=8)
    return STUDY.plan("mlp", 4, dims=tiny_dims(8, 1, 1), changes=changes, **choices)


def design(plan: Plan, name: str) -> Design:
    row: Any = plan.row(name)
    design: Design = row.design
    return design


# --- a layer whose steps are set --------------------------------------------------------------------


@pytest.mark.parametrize("replaced", ["attention", "mlp", "full"])
def test_a_model_that_is_turned_is_the_model_that_was_made_for_so_many_steps(replaced: Any) -> None:
    def made(T: int) -> torch.nn.Module:
        layer = (("steps", T), ("step_size", 1 / T))
        return paired(Design(replaced, tiny_dims(8, 2, 2), 4, 1.0, 0.4, layer).looped, 0)

    turned = made(1)
    before = turned(TOKENS)
    turn(turned, 3, 1 / 3)
    assert torch.equal(turned(TOKENS), made(3)(TOKENS))
    assert not torch.equal(turned(TOKENS), before)
    turn(turned, 1, 1.0)
    assert torch.equal(turned(TOKENS), before)


def test_a_layer_whose_steps_have_their_own_sizes_cannot_be_turned() -> None:
    config = MLPConfig(4, 8, steps=2, step="learned", beyond=Beyond(own_steps=True))
    layer = CEMGatedMLP(config, torch.Generator())
    with pytest.raises(ValueError, match="takes as many as it was made for"):
        turn(layer, 3, 0.1)


def test_every_depth_is_drawn_equally_often_and_again_by_a_training_that_goes_on() -> None:
    drawn = [drawn_depth(8, 0, step) for step in range(8000)]
    assert drawn[500:600] == [drawn_depth(8, 0, step) for step in range(500, 600)]
    assert drawn[:100] != [drawn_depth(8, 1, step) for step in range(100)]
    count = Counter(drawn)
    assert sorted(count) == list(range(1, 9))
    assert all(abs(n - 1000) < 5 * (8000 / 8 * 7 / 8) ** 0.5 for n in count.values())  # five standard deviations


def test_steps_that_sum_to_one_do_and_others_stay_what_they_are() -> None:
    study = small()
    assert {T * design(study, SUM).step_size_at(T) for T in (1, 2, 4, 8, 16)} == {1.0}
    assert {design(study, ALIKE).step_size_at(T) for T in (1, 8, 16)} == {1 / 4}
    assert {design(study, own(4)).step_size_at(T) for T in (1, 4, 16)} == {1 / 4}


def test_the_cost_of_a_drawn_depth_is_the_mean_over_what_is_drawn() -> None:
    drawn = design(small(), SUM)
    each = [
        cost(replace(drawn, dial="", layer=(("steps", T), ("step_size", 1 / MOST))), 8).training
        for T in range(1, MOST + 1)
    ]
    assert cost(drawn, 8).training == pytest.approx(sum(each) / MOST)


# --- trainings --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, TrialRecord]:
    """One judged training of each row."""
    folder = tmp_path_factory.mktemp("corpora")
    choice = CorpusChoice(CHAIN)
    corpus = PinnedCorpus(choice.anywhere, open_corpus(choice, folder).digest)
    study = small()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CEMVERIFY_CORPORA", str(folder))
        cells = {row.name: study.cell(row, 0, "judging", 1.0, 0.02, corpus, "cpu") for row in study.rows}
        cells = {name: replace(cell, windows=8) for name, cell in cells.items()}
        return {name: restore(TrialRecord, compute_trial(cell)) for name, cell in cells.items()}


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_with_its_own_number_of_steps_a_model_has_the_bits_that_it_is_judged_by(
    records: dict[str, TrialRecord], steps: int
) -> None:
    record = records[own(steps)]
    assert record.at_depths[TEST_DEPTHS.index(steps)] == pytest.approx(record.bits, rel=1e-6)
    at_other_depths = [bits for T, bits in zip(TEST_DEPTHS, record.at_depths, strict=True) if steps != T]
    assert record.bits not in at_other_depths


def test_a_model_for_all_depths_is_judged_by_its_mean_and_trained_on_the_same_batches(
    records: dict[str, TrialRecord],
) -> None:
    for name in (SUM, ALIKE):
        at = dict(zip(TEST_DEPTHS, records[name].at_depths, strict=True))
        assert records[name].bits == pytest.approx(sum(cast(float, at[T]) for T in (1, 2, 4, 8)) / 4, rel=1e-6)
        assert records[name].batches == records["T = 1"].batches
    assert records[SUM].trained != records[ALIKE].trained
    assert records[SUM].trained != records["T = 8"].trained


def test_tokens_that_stop_take_the_steps_of_their_energies_and_a_share_of_nothing_stops_none() -> None:
    model = paired(design(small(), ALIKE).looped, 0)
    turn(model, 16, 1 / 4, 1 / 2)
    block = model.blocks[0]
    assert isinstance(block, Block)
    assert isinstance(block.mlp, CEMGatedMLP)
    layer = block.mlp
    h, _ = block.attention.residual(model.embedding[TOKENS])
    falls = -layer.trajectory(h, layer.norm().into(h)).energies.diff(dim=0)[..., 0, :]  # (16, J)
    steps = [next((t for t, fall in enumerate(f, 1) if not fall >= f[0] / 2 or fall <= 0), 16) for f in falls.T]
    assert steps_taken(model, TOKENS) == pytest.approx(sum(steps) / len(steps))


def test_a_record_says_what_each_stop_gives(records: dict[str, TrialRecord]) -> None:
    for record in records.values():
        assert [stop.least_fall for stop in record.at_stops] == list(STOPS)
        steps = [stop.steps for stop in record.at_stops]
        assert steps == sorted(steps)  # a smaller share stops no earlier
        assert all(
            1 <= n <= TEST_DEPTHS[-1] and s.figure is not None for n, s in zip(steps, record.at_stops, strict=True)
        )


def outcome(name: str, *seeds: Any) -> StudyOutcome:
    """The study of one row, with what each seed came to: its bits, those at each depth, and those of each stop."""
    study = small()
    row: Any = study.row(name)
    judged: Any = {
        seed: SimpleNamespace(bits=bits, at_depths=at_depths, at_stops=at_stops)
        for seed, (bits, at_depths, at_stops) in enumerate(seeds)
    }
    return StudyOutcome(study, StudyState((Tuned(row, judged=judged),)), "the text", "byte")


def test_stopped_rows_are_told_beside_their_best_number_of_steps() -> None:
    stops = tuple(AtStop(q, 10 * q, 3.0 + q) for q in STOPS)
    summary = summarise(outcome(ALIKE, *((bits, (5.0, 4.0, *(6.0,) * 6), stops) for bits in (9.0, 8.0))))
    assert summary.stopped == {ALIKE: stops}
    (cells,) = stopped(summary).rows
    assert list(cells[1:5]) == ["6.0000", "4.0000 (T' = 2)", "3.5000 (5.0)", "3.2500 (2.5)"]
    assert f"at the best of 4 shares, the bits are *{ALIKE}* 3.0625 (0.6 steps)" in " ".join(sentences(summary))


def test_a_seed_that_diverged_has_no_stops_and_no_mean_at_its_depth() -> None:
    stops = tuple(AtStop(q, 2.0, 1.0) for q in STOPS)
    summary = summarise(outcome(SUM, (1.0, (1.0,) * 8, stops), (None, (), ())))
    assert (summary.stopped, summary.bits[SUM]) == ({}, (1.0,) * 8)
    late = outcome(SUM, *((1.0, (1.0,) * 7 + (last,), ()) for last in (2.0, None)))
    assert summarise(late).bits[SUM] == (1.0,) * 7 + (None,)


def test_depths_and_stops_are_in_the_names_of_cells_that_judge() -> None:
    pinned, study = PinnedCorpus(CorpusChoice(CHAIN), "0"), small()
    judged, tuning = (
        plain(study.cell(study.rows[-1], 0, part, 1.0, 0.01, pinned, "cpu")) for part in ("judging", "tuning")
    )
    assert judged["depths"] == list(TEST_DEPTHS)
    assert judged["stops"] == list(STOPS)
    assert not {"depths", "stops"} & set(tuning)
    assert tuning["design"]["dial"] == "alike"


# --- what it says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bits", "reached"),
    [
        ((4.0, 3.0, 2.0, 1.0, 1.0, 0.5, 3.0, 4.0), 4),
        ((1.0, 1.1, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4), 1),
        ((8.0, 7.0, 6.0, 5.0, 4.0, 3.0, 2.0, 1.0), 16),
        ((3.0, 2.0, None, 1.0, 1.0, 1.0, 1.0, 1.0), 2),
    ],
)
def test_bits_fall_up_to_the_step_before_they_rise(bits: tuple[float | None, ...], reached: int) -> None:
    assert falls_up_to(bits) == reached


def test_a_dial_alone_is_drawn_and_compared_with_nothing() -> None:
    alone = outcome(SUM, *((bits, (bits,) * 8, ()) for bits in (9.0, 8.0)))
    summary = summarise(alone)
    assert (summary.against, summary.saved) == ({}, None)
    assert SUM in picture(alone.state, summary).drawn
    assert "FLOPs" not in " ".join(sentences(summary))
