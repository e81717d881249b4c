"""The language study trains what it says, on what it says, and says so when it fails."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from cemverify import results
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModel, LanguageModelConfig
from reports.render import terminal
from synthetic import language, language_presets, text
from synthetic.__main__ import main
from synthetic.language_measures import cost, falling_energies
from synthetic.language_presets import PRESETS, Contender, Recipe, contenders, smoke, tiny
from synthetic.language_training import adamw, score, train


def study(output: Path, *arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit code and the result file of `python -m synthetic language --preset tiny`."""
    parser = argparse.ArgumentParser()
    language.add_arguments(parser)
    options = parser.parse_args(["--preset", "tiny", "--device", "cpu", "--output", str(output), *arguments])
    return language.run(options), results.read(output)


def put_preset(monkeypatch: pytest.MonkeyPatch, make: Callable[[], language_presets.Study]) -> None:
    """Replaces the tiny preset."""
    presets: Mapping[str, Any] = MappingProxyType({**PRESETS, "tiny": {"cpu": make, "cuda": make}})
    monkeypatch.setattr(language_presets, "PRESETS", presets)


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run too short to pass."""
    code, content = study(tmp_path_factory.mktemp("short") / "language.json", "--steps", "25")
    assert code == 1
    return content


class Recorder(nn.Module):
    """Predicts from the present byte alone and keeps the tokens it was given."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.logits = nn.Parameter(scale * torch.randn(256, 256, generator=torch.Generator().manual_seed(0)))
        self.seen: list[Tensor] = []

    def forward(self, tokens: Tensor) -> Tensor:
        self.seen.append(tokens)
        return self.logits[tokens]


# --- what is trained on what ----------------------------------------------------------------------


def test_models_see_the_same_batches_in_the_same_order() -> None:
    text_bytes = torch.randint(256, (500,), generator=torch.Generator().manual_seed(1)).to(torch.uint8)
    batches = text.Batches(text_bytes, seed=0, size=2, context=8)
    recorders = Recorder(0.1), Recorder(1.0)
    fingerprints = [train(recorder, Recipe(5, 2, 8), batches, "cpu").batches for recorder in recorders]
    assert fingerprints[0] == fingerprints[1]
    for recorder in recorders:
        assert torch.equal(torch.stack(recorder.seen[-5:]), torch.stack([batches(i)[:, :-1] for i in range(5)]))


def test_a_study_gives_every_model_the_same_batches(short: dict[str, Any]) -> None:
    assert [model["name"] for model in short["models"]] == ["Llama", "CEM T=1", "CEM T=2"]
    assert len({model["batches_digest"] for model in short["models"]}) == 1


@pytest.mark.slow
def test_a_run_repeats_bit_for_bit_and_another_seed_does_not(short: dict[str, Any], tmp_path: Path) -> None:
    _, again = study(tmp_path / "again.json", "--steps", "25")
    _, other = study(tmp_path / "other.json", "--steps", "25", "--seed", "1")
    for first, second, third in zip(short["models"], again["models"], other["models"], strict=True):
        assert first["training_bits_per_byte"] == second["training_bits_per_byte"]
        assert first["validation_bits_per_byte"] == second["validation_bits_per_byte"]
        assert first["batches_digest"] != third["batches_digest"]
        assert first["training_bits_per_byte"] != third["training_bits_per_byte"]


@pytest.mark.slow
def test_every_model_learns_more_than_a_bigram_model_knows(tmp_path: Path) -> None:
    code, content = study(tmp_path / "language.json")
    assert code == 0
    assert content["verdict"] == {"pass": True, "reasons": []}
    for model in content["models"]:
        assert model["validation_bits_per_byte"] < content["corpus"]["bits_per_byte"]["bigram"]


def test_matrices_are_decayed_and_vectors_are_not() -> None:
    recipe = Recipe(1, 1, 1)
    for contender in contenders(dim=16, layers=1, heads=2):
        model = LanguageModel(contender.model, torch.Generator())
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = adamw(model, recipe).param_groups
        decayed, spared = ({names[id(p)].rpartition(".")[2] for p in group["params"]} for group in groups)
        assert groups[0]["weight_decay"] == recipe.weight_decay
        assert groups[1]["weight_decay"] == 0
        assert {"embedding", "head", "W_Q", "W_K"} <= decayed
        assert spared <= {"gain", "diagonal", "p"}
        assert sum(len(group["params"]) for group in groups) == len(names)


def test_the_learning_rate_rises_then_falls_to_its_final_share() -> None:
    recipe = Recipe(steps=200, batch=1, context=1)
    rates = [recipe.learning_rate_at(step) for step in range(200)]
    assert max(rates) == rates[9] == recipe.learning_rate  # 5 % of the steps
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(recipe.final * recipe.learning_rate)


@pytest.mark.parametrize("contender", contenders(dim=16, layers=1, heads=2), ids=lambda c: c.name)
def test_bfloat16_learns_with_float32_parameters(contender: Contender) -> None:
    model = LanguageModel(contender.model, torch.Generator().manual_seed(0))
    batches = text.Batches(torch.arange(5000).remainder(7).to(torch.uint8), seed=0, size=8, context=16)
    recipe = Recipe(60, 8, 16, learning_rate=1e-2, precision="bfloat16")
    training = train(model, recipe, batches, "cpu")
    assert training.bits[-1] < training.bits[0] / 2
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    exact = score(model, batches(0), replace(recipe, precision="float32"), "cpu")
    assert not torch.equal(exact, score(model, batches(0), recipe, "cpu"))  # bfloat16 was indeed used


@pytest.mark.parametrize("make", [smoke, tiny])
def test_cem_has_the_mlp_parameters_of_llama_and_half_its_attention(
    make: Callable[[], language_presets.Study],
) -> None:
    llama, *cems = (LanguageModel(c.model, torch.Generator()) for c in make().contenders)

    def matrices(model: LanguageModel, half: str) -> int:
        return sum(p.numel() for n, p in model.named_parameters() if f".{half}." in n and p.dim() > 1)

    for cem in cems:
        assert matrices(cem, "mlp") == pytest.approx(matrices(llama, "mlp"), rel=0.05)
        assert matrices(cem, "attention") * 2 == matrices(llama, "attention")


# --- what is measured -----------------------------------------------------------------------------


def test_the_flops_are_those_of_the_formulas() -> None:
    context = 16
    llama, *cems = contenders(dim=32, layers=2, heads=2)
    D, L, J, V = 32, 2, context, 256
    KR = D
    assert isinstance(llama.model.block.mlp, SwiGLUConfig)
    M = llama.model.block.mlp.hidden
    assert cost(llama.model, context).forward == L * (8 * D * KR + 4 * J * KR + 6 * D * M) + 2 * D * V
    for contender in cems:
        mlp = contender.model.block.mlp
        assert isinstance(mlp, MLPConfig)
        M, T = mlp.hidden, mlp.steps
        attention = 2 * D * KR + T * (4 * D * KR + 4 * J * KR + 4 * J * D)  # the last term is the shared diagonal's
        assert cost(contender.model, context).forward == L * (attention + (2 + 4 * T) * D * M) + 2 * D * V
        assert 2.5 < cost(contender.model, context).training / cost(contender.model, context).forward <= 3


TOKENS = torch.arange(64).view(4, 16)


def test_small_steps_lower_every_energy_of_every_layer() -> None:
    """The norm's gain is a scalar and P = I: with one gain per channel they would not have to."""
    attention_config = AttentionConfig(16, 2, steps=3, step_size=0.01, norm="scalar", init_std=0.1)
    mlp_config = MLPConfig(16, 32, steps=3, step_size=0.01, norm="scalar", init_std=0.1)
    config = LanguageModelConfig(256, 2, BlockConfig(attention_config, mlp_config), init_std=1.0)
    attention, mlp = falling_energies(LanguageModel(config, torch.Generator().manual_seed(0)), TOKENS)
    assert (attention.kind, mlp.kind) == ("attention", "MLP")
    assert [len(row) for row in (*attention.shares, *mlp.shares)] == [3, 3, 3, 3]
    assert {share for row in (*attention.shares, *mlp.shares) for share in row} == {1.0}


@pytest.mark.parametrize(("gate", "share"), [(-3.0, 1.0), (-4.0, 0.0)])
def test_an_energy_that_rises_is_seen_to_rise(gate: float, share: float) -> None:
    """One dimension, x = h = V = 1 and SiLU: a step of 1 lowers the energy at W = -3 and overshoots at W = -4."""
    block = BlockConfig(AttentionConfig(1, 1), MLPConfig(1, 1))
    model = LanguageModel(LanguageModelConfig(256, 1, block), torch.Generator().manual_seed(0))
    with torch.no_grad():
        for name, value in (("embedding", 1), ("blocks.0.attention.W_Q", 0), ("blocks.0.mlp.V", 1)):
            model.get_parameter(name).fill_(value)
        model.get_parameter("blocks.0.mlp.W").fill_(gate)
    attention, mlp = falling_energies(model, TOKENS)
    assert attention.shares == [[0.0]]  # without queries its energy stays where it is, which is no fall
    assert mlp.shares == [[share]]


def test_a_llama_model_has_no_energies() -> None:
    block = BlockConfig(LlamaAttentionConfig(16, 2), SwiGLUConfig(16, 32))
    assert falling_energies(LanguageModel(LanguageModelConfig(256, 1, block), torch.Generator()), TOKENS) == ()


# --- what is written ------------------------------------------------------------------------------


def test_the_result_file_holds_what_was_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, content = study(tmp_path / "deep" / "language.json", "--steps", "3")
    printed = capsys.readouterr()
    assert terminal(results.tables_of(content)) in printed.out
    assert "step 3/3" in printed.err
    assert content["kind"] == "language"
    assert content["made_by"]["configuration"]["recipe"]["steps"] == 3
    for model in content["models"]:
        assert len(model["training_bits_per_byte"]) == 3
    results.write(tmp_path / "again.json", content)
    assert results.read(tmp_path / "again.json") == content


def test_a_model_no_better_than_a_bigram_fails_with_a_reason(short: dict[str, Any]) -> None:
    assert not short["verdict"]["pass"]
    assert [reason.split(" needs")[0] for reason in short["verdict"]["reasons"]] == ["Llama", "CEM T=1", "CEM T=2"]
    assert all("bigram" in reason for reason in short["verdict"]["reasons"])


def test_a_diverging_run_is_reported_and_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    exploding = replace(tiny(), recipe=replace(tiny().recipe, learning_rate=math.inf))
    put_preset(monkeypatch, lambda: exploding)
    code, content = study(tmp_path / "language.json")
    assert code == 1
    for model, row in zip(content["models"], content["tables"][0]["rows"], strict=True):
        assert model["diverged_at"] == 2  # the first step is taken with finite weights
        assert len(model["training_bits_per_byte"]) == 1
        assert model["validation_bits_per_byte"] is None
        assert "diverged at step 2" in row
    assert len(content["verdict"]["reasons"]) == 3
    assert "CEM T=2 diverged at step 2" in capsys.readouterr().out


def test_weights_lost_in_the_last_step_are_reported_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exploding = replace(tiny(), recipe=replace(tiny().recipe, steps=1, learning_rate=math.inf))
    put_preset(monkeypatch, lambda: exploding)
    code, content = study(tmp_path / "language.json")
    assert code == 1
    assert all("diverged at its last step" in reason for reason in content["verdict"]["reasons"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--preset", "huge"], "no preset 'huge'; there are: tiny, smoke"),
        (["--steps", "0"], "--steps must be at least 1, not 0"),
        (["--seed", "-1"], "--seed must be from 0"),
        (["--device", "tpu"], "no device 'tpu'; there are: auto, cpu, cuda"),
        (["--device", "cuda"], "--device cuda needs a CUDA device"),
    ],
)
def test_bad_input_is_one_sentence_and_exit_code_2(
    arguments: list[str], sentence: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["language", *arguments]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert sentence in printed.err
    assert printed.err.count("\n") == 1


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")
def test_the_study_passes_on_a_gpu_in_bfloat16(tmp_path: Path) -> None:
    code, content = study(tmp_path / "language.json", "--device", "auto")
    assert code == 0, content["verdict"]["reasons"]
    assert content["made_by"]["device"]["type"] == "cuda"
    assert content["made_by"]["configuration"]["recipe"]["precision"] == "bfloat16"
    assert all(model["energy_falls"] for model in content["models"][1:])
