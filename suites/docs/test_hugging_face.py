"""The page on Hugging Face models, followed: its layer is judged as the table at its end says."""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType
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
def llama(here: Path) -> ModuleType:
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


def test_tied_weights_hold_and_those_that_are_drawn_do_not(llama: ModuleType) -> None:
    built = llama.build()
    assert verdict(built) == Verdict.VIOLATED
    llama.tied(built.model)
    assert verdict(built) == Verdict.HOLDS


def test_a_softmax_in_float32_is_right_for_a_layer_that_works_in_float32(
    llama: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    llama.CONFIG._attn_implementation = "eager"
    built = llama.build()
    llama.tied(built.model)
    assert verdict(built) == Verdict.VIOLATED
    monkeypatch.setattr(llama, "energy_layer", lambda **named: energy_layer(**named, working_dtype="float32"))
    assert verdict(built) == Verdict.HOLDS


def test_rotated_queries_and_keys_without_rotated_values_are_not_a_gradient_step(llama: ModuleType) -> None:
    from transformers import LlamaForCausalLM
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    model = llama.tied(LlamaForCausalLM(llama.CONFIG))

    def declare(attention: Any) -> Any:
        def angles(x: torch.Tensor) -> Any:
            return model.model.rotary_emb(x, torch.arange(x.shape[1]).expand(len(x), -1))

        def energy(g: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            q, k = (
                project(states).unflatten(-1, (-1, llama.CONFIG.head_dim)).transpose(1, 2)
                for project, states in ((attention.q_proj, g), (attention.k_proj, m))
            )
            q, k = apply_rotary_pos_emb(q, k, *angles(g))
            later = torch.ones(g.shape[1], g.shape[1], dtype=torch.bool).triu(1)
            scores = (q @ k.mT * attention.scaling).masked_fill(later, -torch.inf)
            values: torch.Tensor = -scores.logsumexp(-1).sum(1) / attention.scaling
            return values

        def update(x: torch.Tensor) -> Any:
            later = torch.full((1, 1, x.shape[1], x.shape[1]), -torch.inf, dtype=x.dtype).triu(1)
            return attention(x, angles(x), later)[0]

        state = ("J", llama.CONFIG.hidden_size)
        return energy_layer(update=update, energy=energy, state=state, memory=llama.PRESENT_STATE)

    assert verdict(TrainedModel(model, declare, llama.inputs)) == Verdict.VIOLATED
