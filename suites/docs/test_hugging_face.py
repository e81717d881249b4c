"""The page on Hugging Face models, followed: its layer is judged as the table at its end says."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest
import torch

from cemverify import TrainedModel, energy_layer
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.trained.activations import random_tokens
from cemverify.conformance.trained.records import judge_trained, prepare
from suites.docs.blocks import blocks

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "hugging-face.md"
LAYER = "model.layers.0.self_attn"

pytestmark = pytest.mark.slow


@pytest.fixture
def llama(here: Path) -> Any:
    """The file that the page on Hugging Face models shows, as a module."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    (file,) = (block for block in blocks(PAGE) if block.title)
    (here / file.title).write_text(file.text)
    torch.manual_seed(0)
    return importlib.import_module("llama")


def verdict(built: TrainedModel) -> Verdict:
    """Of the first property of the page's layer."""
    findings = judge_trained(prepare(built, LAYER, random_tokens(built.model, 2, 16, 0), "cpu"), "llama:build")
    (record,) = (record for record in findings.finished.records if record.id == "trained/update")
    return record.verdict


def test_tied_weights_hold_and_those_that_are_drawn_do_not(llama: Any) -> None:
    built = llama.build()
    assert verdict(built) == Verdict.VIOLATED
    llama.tied(built.model)
    assert verdict(built) == Verdict.HOLDS


def test_a_softmax_in_float32_is_right_for_a_layer_in_float32(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    llama.CONFIG._attn_implementation = "eager"
    built = llama.build()
    llama.tied(built.model)
    assert verdict(built) == Verdict.VIOLATED
    monkeypatch.setattr(llama, "energy_layer", lambda **named: energy_layer(**named, working_dtype="float32"))
    assert verdict(built) == Verdict.HOLDS
