"""Large cases: known in windows of their rows, made smaller by halves, and stated in every result."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import torch

import cemverify
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig
from cemverify.cli import main
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Verdict, asked_up_to
from cemverify.conformance.listeners.terminal import how_far
from cemverify.conformance.oracle.budgets import output_budget
from cemverify.conformance.oracle.golden import energies_at, golden
from cemverify.conformance.properties import catalogue, select
from cemverify.conformance.properties.base import Offer
from cemverify.conformance.properties.sizes import windows
from cemverify.conformance.questions.cases import Case, Config, dense_case
from cemverify.conformance.questions.shrinking import smaller
from cemverify.conformance.questions.spaces import Space

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
def test_a_window_has_the_answer_the_energy_and_the_budget_that_its_tokens_have_in_the_whole_row(
    config: Config,
) -> None:
    case = dense_case(config, 2, 70, seed=3)
    if isinstance(config, BlockConfig):
        case = replace(case, x=case.h)
    whole, budget = golden(case), output_budget(case, torch.float64)
    parts = windows(case)
    assert len(parts) > 3
    for part in parts:
        stop = part.h.shape[1] if case.layer != "mlp" else _place(case, part) + part.x.shape[1]
        there = slice(stop - part.x.shape[1], stop)
        assert torch.allclose(golden(part), whole[:, there], rtol=0, atol=1e-12)
        assert torch.allclose(output_budget(part, torch.float64), budget[:, there], rtol=0.05)
        if case.layer != "block":
            energies = energies_at(case, case.x)[:, there]
            assert torch.allclose(energies_at(part, part.x), energies, rtol=0, atol=1e-12)


def _place(case: Case, part: Case) -> int:
    """Where the tokens of a part stand in the row."""
    return next(j for j in range(case.x.shape[1]) if torch.equal(case.x[:, j], part.x[:, 0]))


def test_windows_stand_on_both_sides_of_every_power_of_two_and_at_the_end() -> None:
    case = dense_case(attention(), 1, 1025, seed=0)
    seen = {j for part in windows(case) for j in range(part.h.shape[1] - part.x.shape[1], part.h.shape[1])}
    assert {n + off for n in (16, 32, 64, 128, 256, 512) for off in (-1, 0, 1)} | {1023, 1024} <= seen


def test_rows_that_users_have_are_asked() -> None:
    reach = [p.questions.reach() for p in catalogue()]
    assert all(max(sizes.get(axis, 0) for sizes in reach) >= size for axis, size in USED.items())


def test_every_size_that_a_property_lists_is_asked_once() -> None:
    (property_,) = select(["sizes/mlp/hidden-units"])
    record = judge_property(reference, property_, Effort(shrink=False))
    sizes = {property_.questions.scattered(Offer(), seed).sizes["M"] for seed in range(record.examples)}  # type: ignore[union-attr]
    assert record.verdict == Verdict.HOLDS
    assert record.asked_up_to == {"T": 1, "J": 5, "B": 2, "M": 2305, "D": 4}
    assert {1023, 1024, 1025, 2304, 2305} <= sizes


def test_a_result_says_up_to_which_sizes_it_was_asked() -> None:
    records = [
        judge_property(reference, property_, Effort(examples=6, shrink=False))
        for property_ in select(["sizes/mlp/energy", "gradient/attention/wide"])
    ]
    assert records[0].describe()["asked_up_to"] == dict(records[0].asked_up_to) != {}
    together = asked_up_to(records)
    assert list(together) == ["T", "J", "B", "M", "K", "D"]
    words = how_far(RunFinished("mine", records, 1.0))
    assert words == "tested up to " + ", ".join(f"{letter} = {size}" for letter, size in together.items())
    assert how_far(RunFinished("mine", [replace(r, verdict=Verdict.VIOLATED) for r in records], 1.0)) == ""


def test_the_list_says_how_far_each_property_asks_as_a_result_file_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["list", "sizes", "--json", "l.json"]) == 0
    assert "They are tested up to T = 17, J = 2304, B = 128, M = 2305, K = 64, D = 4609." in capsys.readouterr().out
    content = json.loads((tmp_path / "l.json").read_text())
    schema = Path(cemverify.__file__ or "").parent / "results" / "result.schema.json"
    jsonschema.validate(content, json.loads(schema.read_text()))
    units = next(p for p in content["properties"] if p["id"] == "sizes/mlp/hidden-units")
    assert units["asked_up_to"] == {"T": 1, "J": 5, "B": 2, "M": 2305, "D": 4}
    assert main(["list", "--features", "--json", "l.json"]) == 2


def test_a_long_case_is_made_smaller_by_halves() -> None:
    case = dense_case(MLPConfig(4, 2304), 1, 2, seed=0)
    first = next(c for c in smaller(case, Space("mlp")) if c.mlp.hidden < 2304)
    assert first.mlp.hidden == 1152
    assert torch.equal(first.weights["V"], case.weights["V"][:1152])
