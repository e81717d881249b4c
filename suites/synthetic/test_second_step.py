"""Whether a second step pays: how rows are tuned, what is compared, and the rule for the answer."""

from __future__ import annotations

import json
import math
import re
import signal
import time
from dataclasses import asdict, replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from cemverify.cem.torch_internals import limit_recompilations
from cemverify.console.errors import UsageError
from cemverify.runs import Cell, CellStore, bring, ctrl_c_after, hand_on
from cemverify.runs.plain import restore
from synthetic.corpora.chains import ChainSpec
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus
from synthetic.corpora.tokens import Batches, Tokens
from synthetic.studies.engine.conduct import follow
from synthetic.studies.engine.designs import REPLACED, Design, Replaced, Row
from synthetic.studies.engine.plan import Plan, Setting
from synthetic.studies.engine.rates import TuningCurve, optimum, rate, starts, wanted
from synthetic.studies.engine.trials import TrialCell, TrialRecord, compute_trial, part_windows
from synthetic.studies.engine.tuning import StudyState, found_within, study
from synthetic.studies.second_step import STUDY
from synthetic.studies.second_step.conclusion import summarise
from synthetic.studies.second_step.rows import LONGER, PLAIN, Key
from synthetic.studies.second_step.rows import beyond as beyond_rows
from synthetic.studies.second_step.rows import usual as usual_rows
from synthetic.training import machine
from synthetic.training.frames import TINY_SIZE, Frame, tiny_dims, tiny_frame
from synthetic.training.looped import paired
from synthetic.training.machine import Machine
from synthetic.training.recipe import Recipe
from synthetic.training.steps import first_non_finite, steps_of, warning
from synthetic.training.training import train

CHAIN = ChainSpec("hidden", 8, states=4, peak=6.0, train=20_000, validation=1250)
PINNED = PinnedCorpus(CorpusChoice(CHAIN), "0" * 64)
FEW = ("T = 1", "T = 1, eta 2", "T = 2, eta 1/2")

plan = STUDY.plan


def usual(replaced: Replaced, frame: Frame, context: int) -> tuple[Row, ...]:
    return usual_rows(Setting(replaced, frame, context, 2))


def beyond(replaced: Replaced, frame: Frame) -> tuple[Row, ...]:
    return beyond_rows(Setting(replaced, frame, 8, 2))


# --- which models -----------------------------------------------------------------------------------


def test_embeddings_alone_are_of_unit_variance_in_every_row() -> None:
    for row in usual("full", tiny_frame(256), 64):
        model = paired(row.design.looped, 0)
        assert float(model.embedding.detach().std()) == pytest.approx(1, rel=0.02)
        assert float(model.head.detach().std()) == pytest.approx(TINY_SIZE.dim**-0.5, rel=0.02)


@pytest.mark.parametrize("replaced", REPLACED)
def test_rows_beyond_the_paper_begin_as_t_2_or_say_why_not(replaced: Replaced) -> None:
    frame = tiny_frame(16, tiny_dims(dim=8, layers=1, heads=2))
    deep = paired(next(r for r in usual(replaced, frame, 8) if r.name == "T = 2, eta 1/2").design.looped, 0)
    learned = next(r for r in usual(replaced, frame, 8) if r.name == "T = 2, eta learned")
    by_name = {row.name.removeprefix("T = 2, "): row for row in (*beyond(replaced, frame), learned)}
    assert ("temperature per step" in by_name) == (replaced != "mlp")
    assert ("joint" in by_name) == (replaced == "full")
    whole = paired(by_name["all of these"].design.looped, 0)
    named = {word for name, _ in whole.named_parameters() for word in name.split(".")}
    assert {"momentum", "log_step", "later_preconditioners"} <= named
    tokens = torch.arange(8)[None]
    same = {
        label: bool(torch.allclose(paired(row.design.looped, 0)(tokens), deep(tokens), rtol=0, atol=1e-5))
        for label, row in by_name.items()
    }
    # all gains of norms are 1 at the start; a row with a cooler step or with turns differs from the start
    cold = {"temperature per step", "all of these"} if replaced != "mlp" else set()
    assert {label for label, is_same in same.items() if not is_same} == cold | ({"joint"} & set(by_name)) | {
        name for name in by_name if name.startswith("T = 1")
    }


def test_every_row_learns() -> None:
    tokens = torch.arange(200).remainder(5)
    recipe = Recipe(steps=12, batch=2, context=8, learning_rate=0.01)
    frame = tiny_frame(5, tiny_dims(dim=8, layers=1, heads=2))
    for row in (*beyond("full", frame), *usual("full", frame, 8)):
        batches = Batches(Tokens(tokens.numpy().astype(np.uint16)), 0, 2, 8)
        done = train(paired(row.design.looped, 0), recipe, batches)
        assert done.diverged_at is None, row.name
        assert done.bits[-1] < done.bits[0] - 0.3, row.name


def test_turns_of_a_joint_block_are_told_like_steps() -> None:
    (row,) = (row for row in beyond("full", tiny_frame(16)) if row.name == "T = 2, joint")
    model, tokens = paired(row.design.looped, 0), torch.arange(8)[None]
    steps = steps_of(model, tokens)
    assert [(s.kind, s.layer) for s in steps] == [("attention", 1), ("MLP", 1), ("attention", 2), ("MLP", 2)]
    assert all((len(s.lengths), len(s.turns), len(s.energies)) == (2, 1, 3) for s in steps)
    block: Any = model.blocks[0]
    walk = block.walk(model.embedding[tokens])
    h, first = walk.states[0], walk.states[2]
    second = (walk.states[3] - first).norm(dim=-1) / first.norm(dim=-1)
    assert steps[0].lengths[1] == pytest.approx(float(second.detach().mean()), rel=1e-4)
    assert steps[0].stream == pytest.approx(float(h.detach().square().mean().sqrt()), rel=1e-4)
    assert all(s.nearness[0] == pytest.approx(1) for s in steps)
    assert first_non_finite(model, tokens) is None
    with torch.no_grad():
        block.get_parameter("mlp.W").fill_(3e38)
    assert first_non_finite(model, tokens) == "layer 1, MLP, round 1 of 2"


def test_layers_that_take_turns_are_not_reused_too() -> None:
    (row,) = (row for row in beyond("full", tiny_frame(16)) if row.name == "T = 2, joint")
    with pytest.raises(UsageError, match="take turns in several rounds"):
        replace(row.design, times=2).looped  # noqa: B018


def test_models_of_one_configuration_are_compiled_once_and_none_is_left_uncompiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machine, "COMPILED", 3)
    monkeypatch.setattr(machine, "_wrapped", 3)  # torch must first forget what it has compiled
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    limit_recompilations(1)  # otherwise torch would compile this many by default
    # the fourth model is one more than are held, so what was compiled before is forgotten
    compiled, small = [], tiny_dims(4, 1, 1)
    for seed, steps in enumerate((1, 2, 1, 3, 4)):
        before = counters["stats"]["unique_graphs"]
        model = paired(Design("mlp", small, 4, 1.0, 0.1, (("steps", steps),)).looped, seed)
        Machine(compiled=True).wrap(model)(torch.zeros(1, 2, dtype=torch.int64))
        compiled.append(counters["stats"]["unique_graphs"] > before)
    assert compiled == [True, True, False, True, True]


def test_rows_whose_steps_differ_are_compiled_in_one_piece() -> None:
    tokens = torch.arange(4).remainder(3)[None]
    differ = ("momentum", "P per step", "eta per step", "temperature per step", "all of these")
    for row in beyond("attention", tiny_frame(8, tiny_dims(8, 1, 2))):
        if not row.name.endswith(differ):  # in the others all steps are alike
            continue
        torch.compiler.reset()
        model = paired(row.design.looped, 0)
        compiled = torch.compile(model, backend="eager", fullgraph=True)
        torch.testing.assert_close(compiled(tokens), model(tokens), msg=row.name)


# --- how a rate is found ----------------------------------------------------------------------------


def valley(lowest: float, start: list[int]) -> dict[int, float]:
    """What tuning tries on a curve with its lowest point there."""
    curve: dict[int, float] = {}
    while numbers := found_within(wanted(curve, start)):
        curve |= {k: (k - lowest) ** 2 for k in numbers}
    return curve


@pytest.mark.parametrize("lowest", [-4.3, 0.0, 1.2, 2.9, 3.0, 7.4])
def test_the_best_rate_ends_up_inside_however_far_away_it_is(lowest: float) -> None:
    curve = TuningCurve(0.1, valley(lowest, starts(None)))
    assert len(curve.bits) >= 4
    assert min(curve.bits) < curve.best < max(curve.bits)
    assert math.log2(optimum(curve) / rate(0)) == pytest.approx(lowest, abs=1 / 8 + 1e-4)
    finer = TuningCurve(0.2, valley(lowest, starts(curve)))
    assert len(finer.bits) == 3
    assert finer.best == curve.best


def test_rates_that_diverge_are_worse_than_any_and_bend_no_parabola() -> None:
    curve = TuningCurve(0.1, {0: 3.0, 1: 2.0, 2: math.inf, 3: math.inf})
    assert wanted(curve.bits, starts(None)) == []
    assert optimum(curve) == rate(1)
    assert wanted(dict.fromkeys(range(4), math.inf), starts(None)) == [-1]


def test_a_curve_that_only_falls_is_given_up_with_a_sentence() -> None:
    with pytest.raises(UsageError, match="something other than the rate is wrong"):
        valley(100.0, starts(None))


# --- what is scored ---------------------------------------------------------------------------------


def test_tuning_and_judging_share_no_token() -> None:
    tokens = Tokens(np.arange(1001, dtype=np.uint16))
    tuned, judged = (part_windows(tokens, part, 1000, 8) for part in ("tuning", "judging"))
    assert set(tuned.flatten().tolist()).isdisjoint(judged.flatten().tolist())
    assert all(b[0] - a[0] >= 8 for part in (tuned, judged) for a, b in pairwise(part.tolist()))
    with pytest.raises(UsageError, match="longer than the data"):
        part_windows(tokens, "judging", 1, 600)


# --- how the steps lie ------------------------------------------------------------------------------


def test_small_embeddings_make_the_first_step_longer_than_the_stream_and_say_so() -> None:
    design = usual("attention", tiny_frame(256), 64)[2].design
    tokens = torch.randint(256, (2, 64), generator=torch.Generator().manual_seed(0))
    large, small = (steps_of(paired(replace(design, embedding_std=std).looped, 0), tokens)[0] for std in (1.0, 1 / 8))
    assert small.lengths[0] > 2
    assert small.nearness[1] < 0.7
    assert large.lengths[0] < 0.5
    assert large.nearness[1] > 0.9
    assert warning({"it": [large]}) is None
    assert re.search(r"\(that: \d\.\d times in attention 1\)", str(warning({"it": [large], "that": [large, small]})))


def test_steps_are_those_of_the_layer() -> None:
    design = replace(usual("mlp", tiny_frame(16), 8)[2].design, times=2)
    model, tokens = paired(design.looped, 0), torch.arange(8)[None]
    steps = steps_of(model, tokens)
    assert [(s.layer, s.application) for s in steps] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    block: Any = model.blocks[0]
    h, _ = block.attention.residual(model.embedding[tokens])
    moved = block.mlp.residual(h) - h
    first, second = steps[0].lengths
    whole = float((moved.norm(dim=-1) / h.norm(dim=-1)).mean().detach())
    assert abs(first - second) - 0.05 < whole < (first + second * (1 + first)) + 0.05
    assert (len(steps[0].turns), len(steps[0].nearness), len(steps[0].energies)) == (1, 2, 3)
    assert steps[0].nearness[0] == pytest.approx(1)


# --- how it is read ---------------------------------------------------------------------------------


def made(study_plan: Plan, bits: dict[str, float], noise: float = 0.002) -> StudyState:
    """The finished study with these bits for each row, all tuned alike; seeds differ a little."""

    def look(cell_: Cell) -> dict[str, Any]:
        cell = compute_trial.restore(cell_.spec)
        row = next(r for r in study_plan.rows if r.design == cell.design and r.weights == cell.weights - cell.seed)
        here = bits.get(row.name, 2.0) + (math.log2(cell.recipe.learning_rate / 0.008)) ** 2
        if cell.part == "judging":
            here = bits.get(row.name, 2.0) * (1 + noise * math.sin(7.0 * cell.seed + len(row.name)))
        return asdict(TrialRecord(1, 1.0, 1.0, (here, here), (1.0,), None, None, (), (), ""))

    return follow(study(study_plan, PINNED, "cpu"), lambda wanted: [look(cell) for cell in wanted.cells]).result


NO_CONTROLS = "the rows that decide it are not in this study"


@pytest.mark.parametrize(
    ("deep", "longer", "verdict", "why", "how"),
    [
        (1.90, 2.00, "pays", "better than *T = 1* and than *T = 1, eta 2*", {}),
        (1.90, 1.90, "does not pay", "equivalent to", {}),  # the trap: the longer update alone is as good
        (2.05, 2.00, "does not pay", "worse than *T = 1*", {}),
        (2.00, 2.00, "does not pay", "equivalent to", {}),
        (1.995, 2.00, "undecided", "", {"seeds": 2}),
        (1.50, 2.00, "undecided", "", {"seeds": 1}),
        (1.50, 2.00, "undecided", NO_CONTROLS, {"names": ("T = 1", "T = 2, eta 1/2")}),
    ],
)
def test_it_pays_only_if_it_beats_the_longer_update_too_and_too_little_decides_nothing(
    deep: float, longer: float, verdict: str, why: str, how: dict[str, Any]
) -> None:
    study_plan, noise = plan("attention", 256, **{"names": FEW, **how}), 0.02 if how else 0.002
    summary = summarise(study_plan, made(study_plan, {"T = 2, eta 1/2": deep, "T = 1, eta 2": longer}, noise))
    assert summary.verdict == verdict
    assert why == summary.why if why == NO_CONTROLS else why in summary.why


def test_what_is_said_of_the_papers_rows_depends_on_no_row_beyond_it() -> None:
    study_plan = plan("full", 256, names=FEW, with_beyond=True)
    bits = {"T = 1, eta 2": 1.95, "T = 2, momentum": 1.90, "T = 2, joint": 1.95, "T = 2, P per step": 2.2}
    summary = summarise(study_plan, made(study_plan, bits))
    verdicts = {pair.keys: pair.verdict for pair in summary.pairs}
    assert verdicts[Key("momentum", 2), LONGER] == "better"
    assert (verdicts[Key("joint", 2), LONGER], verdicts[Key("P per step", 2), PLAIN]) == ("equivalent", "worse")
    assert (Key("scalar norm", 2), Key("scalar norm")) in verdicts
    plain_study = plan("full", 256, names=FEW)
    alone = summarise(plain_study, made(plain_study, bits))
    assert alone.pairs == tuple(pair for pair in summary.pairs if pair.model in FEW)


def test_rows_are_tuned_before_they_are_judged_and_judged_seed_by_seed() -> None:
    study_plan = plan("attention", 256, names=FEW)
    have: set[str] = set()
    order: list[tuple[str, int]] = []

    def look(cell: Cell) -> dict[str, Any] | None:
        bits = 2 + math.log2(cell.spec["recipe"]["learning_rate"] / 0.005) ** 2
        record = TrialRecord(1, 1.0, 1.0, (bits,), (), None, None, (), (), "")
        return asdict(record) if cell.key in have else None

    while todo := follow(study(study_plan, PINNED, "cpu"), lambda wanted: [look(c) for c in wanted.cells]).todo:
        order += [(cell.spec["part"], cell.spec["seed"]) for cell in todo]
        have |= {cell.key for cell in todo}
    judged = [seed for part, seed in order if part == "judging"]
    assert [part for part, _ in order] == ["tuning"] * (len(order) - len(judged)) + ["judging"] * len(judged)
    assert judged == [seed for seed in range(8) for _ in FEW]
    assert all(seed >= 1000 for part, seed in order if part == "tuning")
    assert len(order) - len(judged) == len(FEW) * (4 + 3)


# --- how it is run ----------------------------------------------------------------------------------


def test_cells_are_handed_on_and_an_edited_line_of_them_is_refused(tmp_path: Path) -> None:
    store, path, other = CellStore(tmp_path / "store"), tmp_path / "cells.jsonl", CellStore(tmp_path / "other")
    record = TrialRecord(1, 1.0, 1.0, (2.0,), (3.0,), None, None, (), (), "")
    design, recipe = usual("mlp", tiny_frame(8), 8)[0].design, plan("mlp", 8).recipe
    # a line separator in Unicode
    corpora = (PINNED, PinnedCorpus(CorpusChoice(CHAIN), "a\u2028b"))
    cells = [compute_trial.cell(TrialCell(corpus, design, recipe, 0, 0, "judging", 4)) for corpus in corpora]
    for cell in cells:
        store.put(cell, json.loads(json.dumps(asdict(record))))
    assert [hand_on(path, store, [key]) for key in (cells[0].key, "0" * 64, cells[1].key)] == [1, 1, 2]
    assert (bring(path, other), bring(path, other)) == (2, 0)
    other.path(cells[0].key).write_text("{")
    assert bring(path, other) == 1  # a damaged cell gives way to a sound one
    stored: Any = other.get(cells[0].key)
    assert restore(TrialRecord, stored.payload) == record
    path.write_text(path.read_text().replace('"groups":[2.0]', '"groups":[1.0]'))
    with pytest.raises(UsageError, match="is not a cell as it was written"):
        bring(path, CellStore(tmp_path / "third"))


@pytest.mark.parametrize("handler", [signal.default_int_handler, signal.SIG_IGN], ids=["terminal", "background"])
def test_the_clock_stops_a_run_like_ctrl_c(handler: Any) -> None:
    before = signal.signal(signal.SIGINT, handler)
    try:
        with pytest.raises(KeyboardInterrupt), ctrl_c_after(0.001) as alarm:
            time.sleep(10)
        assert alarm.rang
        with ctrl_c_after(0.0005) as alarm:
            pass
        time.sleep(0.05)
        assert not alarm.rang
        assert signal.getsignal(signal.SIGINT) is handler
    finally:
        signal.signal(signal.SIGINT, before)
