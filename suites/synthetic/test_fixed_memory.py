"""What a fixed memory costs: the rows differ in one thing, the plan binds what is judged, and there is one look."""

from __future__ import annotations

import re
import shlex
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cemverify.cem.models import Block
from cemverify.runs import Cell
from cemverify.runs.exchange import cells_of
from synthetic.__main__ import _parser as parser_of
from synthetic.corpora.chains import ChainSpec
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus
from synthetic.language.studies import planned
from synthetic.studies.engine.comparisons import compared, family
from synthetic.studies.engine.conduct import follow
from synthetic.studies.engine.designs import REPLACED, Replaced, cost, parameters
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.rates import TuningCurve, optimum, rate
from synthetic.studies.engine.study import StudyOutcome
from synthetic.studies.engine.trials import TrialRecord
from synthetic.studies.engine.tuning import study, trainings
from synthetic.studies.fixed_memory import STUDY
from synthetic.studies.fixed_memory.rows import LLAMA, LONGER, ONE, TIED, WIDER
from synthetic.studies.fixed_memory.sentences import answered, read, summarise
from synthetic.training.looped import paired
from synthetic.training.recipe import RecipeChanges

PLAN_PAGE = Path(__file__).parents[2] / "docs" / "fixed-memory.md"
RESULTS = PLAN_PAGE.parent / "results"
PINNED = PinnedCorpus(
    CorpusChoice(ChainSpec("hidden", 8, states=4, peak=6.0, train=20_000, validation=1250)), "0" * 64
)


def plan(replaced: Replaced = "full", **options: Any) -> Plan:
    return STUDY.plan(replaced, 8, **options)


# --- the rows ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", ["attention", "mlp"])
def test_a_refreshed_memory_is_read_at_each_state_and_a_fixed_one_at_the_first(replaced: Replaced) -> None:
    rows = {row.name: row.design for row in plan(replaced).rows}
    h = torch.randn(2, 5, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    model = paired(rows["T = 2, fixed, eta 1/2"].looped, 0).double()
    block = model.blocks[0]
    assert isinstance(block, Block)
    layer: Any = block.attention if replaced == "attention" else block.mlp
    descent = replace(layer.descent, steps=1)
    energy, first = layer.energy, layer.energy.remember(layer.norm().into(h))
    x = descent(energy, h, first)
    fixed, refreshed = descent(energy, x, first), descent(energy, x, energy.remember(layer.norm().into(x)))
    assert not torch.allclose(fixed, refreshed, atol=1e-3)
    states = {}
    for memory in ("fixed", "refreshed"):
        looped = rows[f"T = 2, {memory}, eta 1/2"].looped
        half = paired(looped, 0).double().blocks[0]
        assert isinstance(half, Block)
        out = h
        for _ in range(looped.attention if replaced == "attention" else looped.mlp):
            out = half.attention.residual(out)[0] if replaced == "attention" else half.mlp.residual(out)
        states[memory] = out
    assert torch.allclose(states["fixed"], fixed, rtol=0, atol=1e-12)
    assert torch.allclose(states["refreshed"], refreshed, rtol=0, atol=1e-12)


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
            assert kinds == {LLAMA: set(), TIED: {"identity"}}.get(row.name, {usual})


def test_the_controls_have_the_flops_of_the_two_steps() -> None:
    full = plan("full", changes=RecipeChanges(context=64))
    by_name = {row.name: row for row in full.rows}
    deep = cost(by_name["T = 2, fixed, eta 1/2"].design, 64).training
    longer, wider = by_name[LONGER], by_name[WIDER]
    assert longer.design == by_name[ONE].design
    assert longer.length * cost(longer.design, 64).training == pytest.approx(deep)
    assert cost(wider.design, 64).training == pytest.approx(deep, rel=0.02)
    steps = {name: full.cell(by_name[name], 0, "judging", 1.0, 0.01, PINNED, "cpu").recipe.steps for name in by_name}
    assert {name for name, n in steps.items() if n != steps[ONE]} == {LONGER}
    assert steps[LONGER] == pytest.approx(longer.length * steps[ONE], abs=1)
    assert trainings(full)[LONGER] == pytest.approx(longer.length * trainings(full)[ONE])


@pytest.mark.parametrize("P", ["diagonal", "low rank"])
def test_tied_attention_has_the_parameters_of_llama_but_for_its_diagonal(P: Any) -> None:
    attention = plan("attention", P=P)
    tied, llama = (row.design for row in attention.rows if row.name in (TIED, LLAMA))
    assert parameters(tied) == parameters(llama) + tied.size.layers * tied.size.dim
    assert tied.preconditioner == "identity"
    assert all(row.name != TIED for row in plan("full").rows)


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
        plan(names=(ONE,)),
        plan(changes=RecipeChanges(context=32)),
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
    assert names == [planned(STUDY, options, 256).name for options in parsed]
    assert len(names) == 2


def test_every_published_training_that_judged_carries_a_plan_of_the_page() -> None:
    names = set(re.findall(r"^\| `(\w{12})`", PLAN_PAGE.read_text(), re.MULTILINE))
    for path in RESULTS.glob("fixed-memory-*.cells.jsonl"):
        for _, cell in cells_of(path):
            spec = cell["spec"]
            assert spec.get("plan", "") in (names if spec["part"] == "judging" else {""})


# --- one look ---------------------------------------------------------------------------------------


def judged(study_plan: Plan, missing: int = 0) -> StudyOutcome:
    """The study with made-up bits, in which refreshed rows need 1 % fewer; without the last so many trainings."""
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
    assert summarise(six_seeds, early.state).pairs == ()
    findings = read(early)
    assert findings.compared == ()
    text = " ".join(str(block) for block in findings.page.blocks)
    assert "53 of the 54 trainings that judge are there" in text
    assert not re.search(r"\d\.\d{4} \[", text)
    assert "refreshed is better" in read(whole).conclusion
    assert len(summarise(six_seeds, whole.state).memories) == 2


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
    two_rows = plan(seeds=6, names=(ONE, LONGER))
    assert summarise(two_rows, judged(two_rows).state).answer == "undecided"
