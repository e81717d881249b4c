"""Depth as a dial (T drawn in training and chosen at test time), and what a fixed memory costs."""

from __future__ import annotations

import re
import shlex
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from cemverify.cem.beyond import Beyond
from cemverify.cem.layers import CEMGatedMLP, MLPConfig
from cemverify.runs import Cell
from cemverify.runs.plain import restore
from synthetic.__main__ import _parser as parser_of
from synthetic.corpora.chains import ChainSpec
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus, open_corpus
from synthetic.language.studies import planned
from synthetic.studies.depth_dial import STUDY
from synthetic.studies.depth_dial.conclusion import at_depths, at_stops
from synthetic.studies.depth_dial.rows import ALIKE, SUM, TEST_DEPTHS
from synthetic.studies.depth_dial.rows import Key as Dialled
from synthetic.studies.engine.comparisons import compared, family
from synthetic.studies.engine.conduct import follow
from synthetic.studies.engine.designs import REPLACED, Design, Replaced, parameters
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.rates import TuningCurve, optimum, rate
from synthetic.studies.engine.stopping import STOPS, AtStop
from synthetic.studies.engine.study import StudyOutcome
from synthetic.studies.engine.trials import TrialRecord, compute_trial
from synthetic.studies.engine.tuning import StudyState, Tuned, study
from synthetic.studies.fixed_memory import STUDY as OF_MEMORY
from synthetic.studies.fixed_memory.conclusion import answered, read
from synthetic.studies.fixed_memory.conclusion import summarise as summarise_memory
from synthetic.studies.fixed_memory.rows import MEMORIES, Key
from synthetic.training.frames import tiny_dims
from synthetic.training.looped import drawn_depth, paired, turn
from synthetic.training.steps import steps_taken

CHAIN = ChainSpec("hidden", 4, states=2, train=20_000, validation=400)
PINNED = PinnedCorpus(CorpusChoice(CHAIN), "0" * 64)
TOKENS = torch.arange(6).remainder(4)[None]


def small(**choices: Any) -> Plan:
    """The study of MLPs, as small as possible."""
    changes = {"steps": 6, "batch": 2, "context": 8}
    return STUDY.plan("mlp", 4, dims=tiny_dims(8, 1, 1), changes=changes, **choices)


def design(plan: Plan, key: Dialled) -> Any:
    row: Any = plan.row(key)
    return row.design


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
    assert {design(study, Dialled(4)).step_size_at(T) for T in (1, 4, 16)} == {1 / 4}


# --- trainings --------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[Any, TrialRecord]:
    """One judged training of each row."""
    folder = tmp_path_factory.mktemp("corpora")
    choice = CorpusChoice(CHAIN)
    corpus = PinnedCorpus(choice.anywhere, open_corpus(choice, folder).digest)
    study = small()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CEMVERIFY_CORPORA", str(folder))
        cells = {row.key: study.cell(row, 0, "judging", 1.0, 0.02, corpus, "cpu") for row in study.rows}
        cells = {key: replace(cell, windows=8) for key, cell in cells.items()}
        return {key: restore(TrialRecord, compute_trial(cell)) for key, cell in cells.items()}


@pytest.mark.parametrize("steps", [1, 2, 4, 8])
def test_with_its_own_number_of_steps_a_model_has_the_bits_that_it_is_judged_by(
    records: dict[Any, TrialRecord], steps: int
) -> None:
    record = records[Dialled(steps)]
    assert record.at_depths[TEST_DEPTHS.index(steps)] == pytest.approx(record.bits, rel=1e-6)
    at_other_depths = [bits for T, bits in zip(TEST_DEPTHS, record.at_depths, strict=True) if steps != T]
    assert record.bits not in at_other_depths


def test_a_model_for_all_depths_is_judged_by_its_mean_and_trained_on_the_same_batches(
    records: dict[Any, TrialRecord],
) -> None:
    for key in (SUM, ALIKE):
        at = dict(zip(TEST_DEPTHS, records[key].at_depths, strict=True))
        assert records[key].bits == pytest.approx(sum(cast(float, at[T]) for T in (1, 2, 4, 8)) / 4, rel=1e-6)
        assert records[key].batches == records[Dialled(1)].batches
    assert records[SUM].trained != records[ALIKE].trained
    assert records[SUM].trained != records[Dialled(8)].trained


def test_tokens_that_stop_take_the_steps_of_their_energies_and_a_share_of_nothing_stops_none() -> None:
    model = paired(design(small(), ALIKE).looped, 0)
    turn(model, 16, 1 / 4, 1 / 2)
    block: Any = model.blocks[0]
    layer = block.mlp
    h, _ = block.attention.residual(model.embedding[TOKENS])
    falls = -layer.trajectory(h, layer.norm().into(h)).energies.diff(dim=0)[..., 0, :]  # (16, J)
    steps = [next((t for t, fall in enumerate(f, 1) if not fall >= f[0] / 2 or fall <= 0), 16) for f in falls.T]
    assert steps_taken(model, TOKENS) == pytest.approx(sum(steps) / len(steps))


def test_a_record_says_what_each_stop_gives(records: dict[Any, TrialRecord]) -> None:
    for record in records.values():
        assert [stop.least_fall for stop in record.at_stops] == list(STOPS)
        steps = [stop.steps for stop in record.at_stops]
        assert steps == sorted(steps)  # a smaller share does not stop earlier
        assert all(
            1 <= n <= TEST_DEPTHS[-1] and s.figure is not None for n, s in zip(steps, record.at_stops, strict=True)
        )


def outcome(key: Dialled, *seeds: Any) -> StudyOutcome:
    """The study of one row, with the results of each seed: bits, bits at each depth, and bits with each stop."""
    study = small()
    row: Any = study.row(key)
    judged: Any = {
        seed: SimpleNamespace(bits=bits, at_depths=at_depths, at_stops=at_stops)
        for seed, (bits, at_depths, at_stops) in enumerate(seeds)
    }
    return StudyOutcome(study, StudyState((Tuned(row, judged=judged),)), "the text", "byte")


def test_a_seed_that_diverged_has_no_stops_and_no_mean_at_its_depth() -> None:
    stops = tuple(AtStop(q, 2.0, 1.0) for q in STOPS)
    (tuned,) = outcome(SUM, (1.0, (1.0,) * 8, stops), (None, (), ())).state.rows
    assert (at_stops(tuned), tuple(at_depths(tuned).values())) == ((), (1.0,) * 8)
    (late,) = outcome(SUM, *((1.0, (1.0,) * 7 + (last,), ()) for last in (2.0, None))).state.rows
    assert tuple(at_depths(late).values()) == (1.0,) * 7 + (None,)


# --- what a fixed memory costs: the plan binds judged trainings, and results are read once ------------


PLAN_PAGE = Path(__file__).parents[2] / "docs" / "fixed-memory.md"


def plan(replaced: Replaced = "full", **options: Any) -> Plan:
    return OF_MEMORY.plan(replaced, 8, **options)


# --- the rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", ["attention", "mlp"])
def test_a_refreshed_memory_is_read_at_each_state_and_a_fixed_one_at_the_first(replaced: Replaced) -> None:
    rows = {row.key: row.design for row in plan(replaced).rows}
    h = torch.randn(2, 5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    block: Any = paired(rows[Key.FIXED_SHORT].looped, 0).double().blocks[0]
    layer = block.attention if replaced == "attention" else block.mlp
    descent = replace(layer.descent, steps=1)
    energy, first = layer.energy, layer.energy.remember(layer.norm().into(h))
    x = descent(energy, h, first)
    fixed, refreshed = descent(energy, x, first), descent(energy, x, energy.remember(layer.norm().into(x)))
    assert not torch.allclose(fixed, refreshed, atol=1e-3)
    states = {}
    for memory in (Key.FIXED_SHORT, Key.REFRESHED_SHORT):
        looped = rows[memory].looped
        half: Any = paired(looped, 0).double().blocks[0]
        out = h
        for _ in range(looped.attention if replaced == "attention" else looped.mlp):
            out = half.attention.residual(out)[0] if replaced == "attention" else half.mlp.residual(out)
        states[memory] = out
    assert torch.allclose(states[Key.FIXED_SHORT], fixed, rtol=0, atol=1e-12)
    assert torch.allclose(states[Key.REFRESHED_SHORT], refreshed, rtol=0, atol=1e-12)


@pytest.mark.parametrize("P", ["diagonal", "low rank"])
def test_p_and_positions_are_the_same_whatever_the_layer(P: Any) -> None:
    for replaced in REPLACED:
        for row in plan(replaced, P=P).rows:
            block = row.design.looped.model.block
            assert block.attention.position == "alibi", (replaced, row.name)
            kinds = {
                layer.preconditioner.kind
                for layer in (block.attention, block.mlp)
                if hasattr(layer, "preconditioner")
            }
            usual = "diagonal" if P == "diagonal" else "low-rank-printed"
            special: Any = {Key.LLAMA: set(), Key.TIED: {"identity"}}
            assert kinds == special.get(row.key, {usual})


@pytest.mark.parametrize("P", ["diagonal", "low rank"])
def test_tied_attention_has_the_parameters_of_llama_but_for_its_diagonal(P: Any) -> None:
    attention = plan("attention", P=P)
    tied, llama = (row.design for row in attention.rows if row.key in (Key.TIED, Key.LLAMA))
    assert parameters(tied) == parameters(llama) + tied.size.layers * tied.size.dim
    assert tied.preconditioner == "identity"
    assert plan("full").row(Key.TIED) is None


# --- the plan ---------------------------------------------------------------------------------------


def test_the_name_of_a_plan_changes_with_all_that_decides_and_not_with_words() -> None:
    usual = plan()
    assert plan().name == usual.name
    reworded = replace(usual, rows=tuple(replace(row, why="otherwise") for row in usual.rows))
    assert reworded.name == usual.name
    changed = [
        plan(seeds=8),
        plan(tuning_seeds=2),
        plan(tuning=2),
        plan(per_parameter=5.0),
        plan(P="diagonal"),
        plan("mlp"),
        plan(names=("T = 1",)),
        plan(changes={"context": 32}),
        replace(usual, rounded=True),
    ]
    assert len({usual.name, *(other.name for other in changed)}) == len(changed) + 1


def test_trainings_that_judge_carry_the_name_of_their_plan_and_those_that_tune_do_not() -> None:
    usual = plan()
    for row in usual.rows:
        assert usual.cell(row, 0, "judging", 1.0, 0.01, PINNED, "cpu").plan == usual.name
        assert usual.cell(row, 1000, "tuning", 1.0, 0.01, PINNED, "cpu").plan == ""


def test_the_plans_of_the_page_have_the_names_that_it_gives() -> None:
    text = PLAN_PAGE.read_text()
    names = re.findall(r"^\| `(\w{12})`", text, re.MULTILINE)
    commands = re.findall(r"    python -m synthetic (language fixed-memory --.*?--page \S+)", text, re.DOTALL)
    parsed = [parser_of(["language"]).parse_args(shlex.split(words.replace("\\\n", " "))) for words in commands]
    assert names == [planned(OF_MEMORY, options, 256).name for options in parsed]
    assert len(names) == 2


# --- one look ---------------------------------------------------------------------------------------


def judged(study_plan: Plan, missing: int = 0) -> StudyOutcome:
    """The study with made-up bits: refreshed rows need 1 % fewer; the last `missing` trainings are left out."""
    left = study_plan.seeds * len(study_plan.rows) - missing

    def look(cell: Cell) -> dict[str, Any] | None:
        nonlocal left
        spec = cell.spec
        if spec["part"] == "judging":
            left -= 1
            if left < 0:
                return None
        octaves = torch.tensor(spec["recipe"]["learning_rate"] / 4.3e-3).log2().item()
        bits = 2.0 + 0.02 * octaves**2 + 0.001 * (spec["seed"] % 7) - (0.02 if spec["design"]["times"] == 2 else 0)
        bits += 0.0005 * ((spec["seed"] * len(str(spec["design"]))) % 5)
        return asdict(TrialRecord(1, 1.0, 3.0, (bits, bits), (bits,), None, None, (), (), ""))

    progress = follow(study(study_plan, PINNED, "cpu"), lambda wanted: [look(cell) for cell in wanted.cells])
    return StudyOutcome(study_plan, progress.result, "the corpus", "symbol")


def test_nothing_is_compared_before_the_last_training_that_judges() -> None:
    six_seeds = plan(seeds=6)
    early, whole = judged(six_seeds, missing=1), judged(six_seeds)
    assert summarise_memory(six_seeds, early.state).pairs == ()
    findings = read(early)
    assert findings.compared == ()
    text = " ".join(str(block) for block in findings.page.blocks)
    assert "53 of the 54 trainings that judge are done" in " ".join(text.split())
    assert not re.search(r"\d\.\d{4} \[", text)
    assert read(whole).figures["verdict"]["word"] == "refreshed is better"
    pairs = summarise_memory(six_seeds, whole.state).pairs
    assert [pair.keys for pair in pairs[:2]] == [(refreshed, fixed) for fixed, refreshed, _ in MEMORIES]


def test_rates_are_the_minimum_of_the_parabola_and_not_rounded() -> None:
    state = judged(plan(seeds=1)).state
    assert [tuned.rate for tuned in state.rows] == pytest.approx([4.3e-3] * len(state.rows), rel=1e-4)
    curve = TuningCurve(1.0, {k: (k - 1.1) ** 2 for k in range(4)})
    assert optimum(curve, rounded=False) == pytest.approx(rate(1.1))
    assert optimum(curve) == rate(1)


@pytest.mark.parametrize(
    ("gains", "answer"),
    [
        ((0.98, 0.98), "refreshed is better"),
        ((1.0, 1.0), "equivalent"),
        ((1.02, 1.02), "fixed is better"),
        ((0.98, 1.02), "depends on the step"),
        ((0.98, 1.0), "depends on the step"),
        ((0.98, None), "undecided"),
    ],
)
def test_the_answer_follows_from_both_step_sizes(gains: tuple[float | None, ...], answer: str) -> None:
    noise = [1.0, 1.001, 0.999, 1.0005, 0.9995, 1.0]
    wide = [1.0, 1.05, 0.95, 1.04, 0.96, 1.0]
    pairs = []
    for gain in gains:
        ratios = [gain * e for e in noise] if gain is not None else wide
        pairs.append(compared("refreshed", "fixed", dict(enumerate(ratios)), dict.fromkeys(range(6), 1.0)))
    assert answered(family(pairs)) == answer


def test_a_study_without_the_deciding_rows_is_undecided() -> None:
    two_rows = plan(seeds=6, names=("T = 1", "T = 1, trained longer"))
    assert summarise_memory(two_rows, judged(two_rows).state).answer == "undecided"
