"""Verdicts on training are computed from what the studies wrote, and change when a study's file does."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from cemverify.claims import PUBLISHED, Claim, ClaimVerdict, find_claim, judge_claim, ledger
from cemverify.claims.readings import MeasuredRatio, side_of
from suites.kit.commands import Told

FILES = [file for file in sorted(PUBLISHED.glob("*.json")) if json.loads(file.read_text())["kind"] == "readings"]
MEASURED = [claim.id for claim in ledger() if claim.kind == "training" and claim.arguments]


def edited(folder: Path, mean: float, spread: float, *, rates_at_edge: bool = False, parameters: int = 0) -> None:
    """Writes the published readings into a folder, with every ratio set to this value."""
    for file in FILES:
        content = json.loads(file.read_text())
        for ratio in content["ratios"]:
            ratio["mean"] = mean
            ratio["interval95"] = ratio["interval90"] = [mean - spread, mean + spread]
            ratio.pop("verdict", None)
        for best in content["best_rates"]:
            best["at_edge"] = rates_at_edge
        content["parameters"] += parameters
        (folder / f"{file.stem}-{parameters}.json").write_text(json.dumps(content))


@pytest.fixture(scope="module")
def ledgers(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Claim]]:
    """The claims of studies whose ratios are better, worse and unclear."""
    folders = [tmp_path_factory.mktemp(name) for name in ("better", "worse", "unclear")]
    for folder, mean, spread in zip(folders, (0.9, 1.1, 1.0), (0.01, 0.01, 0.3), strict=True):
        edited(folder, mean, spread, rates_at_edge=spread > 0.1)
    return [{claim.id: claim for claim in ledger(folder)} for folder in folders]


@pytest.mark.parametrize("id_", MEASURED)
def test_a_verdict_on_training_changes_with_the_file_of_its_study(id_: str, ledgers: list[dict[str, Claim]]) -> None:
    assert len({judge_claim(claims[id_]).verdict for claims in ledgers}) > 1


def test_without_a_file_and_of_one_model_alone_nothing_is_measured(tmp_path: Path) -> None:
    for claim in ledger(tmp_path):
        if claim.kind == "training":
            assert judge_claim(claim).verdict == ClaimVerdict.NOT_MEASURED
    edited(tmp_path, 0.9, 0.01)
    for file in tmp_path.glob("*.json"):
        file.write_text(json.dumps({**json.loads(file.read_text()), "ratios": [], "best_rates": []}))
    assert judge_claim(find_claim("18-depth-two-synthetic", tmp_path)).verdict == ClaimVerdict.NOT_MEASURED


def test_a_verdict_names_scale_and_seeds_and_a_second_scale_stands_beside_the_first(tmp_path: Path) -> None:
    assert "0.133M parameters, 0.512M tokens, 3 seeds" in judge_claim(find_claim("18-attention-one-step")).conclusion
    edited(tmp_path, 1.1, 0.01)
    edited(tmp_path, 0.9, 0.01, parameters=86_000_000)
    judged = judge_claim(find_claim("18-depth-two-language", tmp_path))
    assert judged.verdict == ClaimVerdict.DEPENDS
    assert re.search(r"\bdisagrees at 0\.118M parameters", judged.conclusion)
    assert re.search(r"\bagrees at 86\.1M parameters", judged.conclusion)


def test_a_damaged_file_is_named_in_a_sentence(tmp_path: Path, told: Told) -> None:
    content = json.loads(FILES[0].read_text())
    content["ratios"][0]["interval95"] = [1.1, 0.9]
    (tmp_path / "broken.json").write_text(json.dumps(content))
    message = told(f"cemverify claims 7-sign --results {tmp_path}", 2).err
    assert "broken.json lacks what a result of kind 'readings' has" in message
    assert message.count("\n") == 1


def test_other_results_in_the_folder_are_left_alone(tmp_path: Path) -> None:
    (study,) = (file for file in FILES if file.stem == "language-recursion")
    shutil.copy(study, tmp_path / "language.json")
    content = json.loads(study.read_text()) | {"kind": "claims", "counts": {}, "claims": []}
    (tmp_path / "claims.json").write_text(json.dumps(content))
    assert any(claim.arguments for claim in ledger(tmp_path) if claim.kind == "training")


@pytest.mark.parametrize(
    ("mean", "spread", "sides"),
    [
        (0.9, 0.01, "for against against for against"),
        (1.1, 0.01, "against for against against for"),
        (1.0, 0.001, "against against for for for"),
        (1.0, 0.1, "neither neither neither neither neither"),
    ],
)
def test_a_ratio_is_read_by_rules(mean: float, spread: float, sides: str) -> None:
    interval = (mean - spread, mean + spread)
    ratio = MeasuredRatio("a", "b", "", mean, interval, interval)
    kinds = ("better", "worse", "close", "no worse", "no better")
    assert [side_of(kind, ratio, 0.005) for kind in kinds] == sides.split()  # type: ignore[arg-type]


def test_what_was_not_compared_or_is_inconclusive_after_its_correction_takes_no_side() -> None:
    assert side_of("better", None, 0.005) == "neither"
    ratio = MeasuredRatio("T = 2", "T = 1", "", 0.995, (0.99, 0.9995), (0.991, 0.999))
    assert side_of("better", ratio, 0.005) == "for"
    assert side_of("better", replace(ratio, verdict="inconclusive"), 0.005) == "neither"
