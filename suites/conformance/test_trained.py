"""A trained layer: its weights come from a file, its states from the model, its numbers from the weights."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file, save_model
from torch import Tensor, nn

from cemverify import TrainedModel, Verdict, energy_layer
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.models import BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.conformance.trained.activations import TokenRows, catch, random_tokens
from cemverify.conformance.trained.checkpoint import load_weights
from cemverify.conformance.trained.records import TrainedFindings, judge_trained, prepare
from cemverify.console.errors import UsageError
from cemverify.results.envelope import read
from examples.trained_models import hopfield_block
from suites.kit.commands import Told, refused

HOPFIELD = "examples.trained_models.hopfield_block:build"


def language_model(norm: Any = "none", preconditioner: PreconditionerConfig | None = None) -> Any:
    P = preconditioner or PreconditionerConfig()
    both: Any = {"steps": 2, "norm": norm, "init_std": 0.4}
    attention = AttentionConfig(8, 2, position="rotary", diagonal="shared", preconditioner=P, **both)
    mlp = MLPConfig(8, 12, preconditioner=replace(P, per_head=False), **both)
    config = LanguageModelConfig(20, 1, BlockConfig(attention, mlp), init_std=1.0)
    model = LanguageModel(config, torch.Generator().manual_seed(0))
    with torch.no_grad():
        generator = torch.Generator().manual_seed(1)
        for name, parameter in model.named_parameters():
            if name.endswith(("gain", "diagonal", ".p")):
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    return model


def judged(model: nn.Module | TrainedModel, layer: str) -> TrainedFindings:
    whole = model if isinstance(model, TrainedModel) else TrainedModel(model)
    return judge_trained(prepare(whole, layer, random_tokens(whole.model, 2, 12, seed=0), "cpu"), "it")


def verdicts(findings: TrainedFindings) -> dict[str, Verdict]:
    return {record.id.partition("/")[2]: record.verdict for record in findings.finished.records}


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "weights.safetensors"
    save_model(hopfield_block.build().model, str(path))
    return path


@pytest.mark.parametrize("layer", ["blocks.0.attention", "blocks.0.mlp"])
@pytest.mark.parametrize("norm", ["none", "scalar", "channel", "folded"])
def test_layers_of_cem_are_what_they_are_declared_to_be_and_left_as_they_were(norm: str, layer: str) -> None:
    model = language_model(norm)
    before = set(vars(model.get_submodule(layer)))
    findings = judged(model, layer)
    assert (set(vars(model.get_submodule(layer))), next(model.parameters()).dtype) == (before, torch.float32)
    assert {*verdicts(findings).values()} <= {Verdict.HOLDS, Verdict.NOT_OFFERED}, findings.finished.records
    assert verdicts(findings)["update"] == verdicts(findings)["symmetry"] == Verdict.HOLDS
    assert (verdicts(findings)["slope"] == Verdict.HOLDS) == (norm != "channel")
    assert len(findings.steps) == 2


def test_a_preconditioner_that_training_made_indefinite_is_found_with_its_eigenvalue() -> None:
    model = language_model("none", PreconditionerConfig("low-rank-printed", rank=1))
    P = model.blocks[0].attention.preconditioner
    with torch.no_grad():
        P.U.fill_(1.0)
        P.V.fill_(-1.0)
    findings = judged(model, "blocks.0.attention")
    assert findings.smallest_eigenvalue == pytest.approx(float(P().smallest_eigenvalue().detach()), rel=1e-5)
    assert verdicts(findings)["preconditioner"] == verdicts(findings)["slope"] == Verdict.VIOLATED
    assert findings.steps[0].slope is not None
    assert findings.steps[0].slope.rises > 0


def test_one_preconditioner_per_head_is_measured_and_not_judged() -> None:
    findings = judged(language_model("none", PreconditionerConfig("diagonal", per_head=True)), "blocks.0.attention")
    assert verdicts(findings)["slope"] == verdicts(findings)["symmetry"] == Verdict.NOT_OFFERED
    assert findings.steps[0].slope is not None
    assert (findings.steps[0].asymmetry or 0) > 1e-3


def test_a_declared_layer_that_is_not_its_gradient_is_violated_and_its_asymmetry_is_that_of_its_matrix() -> None:
    def declare(layer: Any) -> Any:
        energy = lambda x: -((x @ layer.weight.mT) * x).sum(-1) / 2  # noqa: E731
        return energy_layer(update=layer, energy=energy, state=("J", 3), memory=None)

    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(9, 3), nn.Linear(3, 3, bias=False))
    W = model.state_dict()["1.weight"].double()
    findings = judged(TrainedModel(model, declare), "1")
    assert verdicts(findings)["update"] == verdicts(findings)["symmetry"] == Verdict.VIOLATED
    asymmetry = float(torch.linalg.matrix_norm(W - W.mT) / torch.linalg.matrix_norm(W))
    assert findings.steps[0].asymmetry == pytest.approx(asymmetry, rel=0.3)


def test_several_steps_in_one_call_have_no_asymmetry_of_their_own() -> None:
    def declare(layer: Any) -> Any:
        energy = lambda x: x.cosh().log().sum(-1)  # noqa: E731
        return energy_layer(update=layer, energy=energy, state=("J", 3), memory=None, steps=2, step_size=0.1)

    class Twice(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            once = x - 0.1 * x.tanh()
            return once - 0.1 * once.tanh() - x

    findings = judged(TrainedModel(nn.Sequential(nn.Embedding(9, 3), Twice()), declare), "1")
    assert verdicts(findings)["update"] == Verdict.HOLDS
    assert verdicts(findings)["symmetry"] == Verdict.NOT_OFFERED
    assert [step.asymmetry for step in findings.steps] == [None, None]


def test_a_trained_layer_is_checked_from_the_command_line(weights: Path, here: Path, told: Told) -> None:
    np.save("tokens.npy", np.arange(24).reshape(3, 8))
    command = f"cemverify check {HOPFIELD} --checkpoint {weights} --layer memory --tokens tokens.npy"
    assert "memory on 3 x 8 tokens" in told(f"{command} --json result.json --markdown page.md").out
    stored = read(here / "result.json")
    assert stored["trained"]["steps"][0]["slope"] == {"falls": 1.0, "rises": 0.0}
    assert stored["trained"]["weights"]["tensors"] == 4
    assert [p["id"] for p in stored["properties"]][:2] == ["trained/update", "trained/slope"]
    assert "## memory on 3 x 8 tokens" in (here / "page.md").read_text()


def test_a_trained_layer_is_compared_with_its_baseline_and_its_violations_are_accepted(
    weights: Path, here: Path, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = f"cemverify check {HOPFIELD} --checkpoint {weights} --layer memory"
    told(f"{command} --json before.json")
    monkeypatch.setattr(hopfield_block.Memory, "forward", lambda _, h: 2 * h)
    assert "trained/update held and is violated" in told(f"{command} --baseline before.json", 1).out
    told(f"{command} --known known.toml --update-known --reason ours")
    told(f"{command} --known known.toml --json result.json")
    entries = read(here / "result.json")["known"]["entries"]
    assert ("trained/update", "known") in {(e["property"], e["standing"]) for e in entries}


def test_a_violation_ends_with_the_command_that_judges_it_again(weights: Path, here: Path, told: Told) -> None:
    text = Path(hopfield_block.__file__).read_text()
    (here / "wrong.py").write_text(text.replace("(retrieved - g)", "(retrieved - 1.1 * g)"))
    np.save("tokens.npy", np.arange(24).reshape(3, 8))
    command = f"cemverify check wrong:build --checkpoint {weights} --layer memory"
    for more in ("", " --tokens tokens.npy --seed 3 --dtype float32"):
        printed = told(f"{command}{more} --json r.json --examples 9", 1).flat
        assert read(Path("r.json"))["diagnosis"]["again"] == f"{command}{more}"
        assert f"again: {command}{more}" in printed
        assert "mend:" not in printed


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--layer memory", "--layer needs --checkpoint FILE"),
        ("--checkpoint {weights}", "--checkpoint needs --layer NAME"),
        ("--checkpoint {weights} --layer memori", "has no layer 'memori'; it has embedding, memory, head"),
        ("--checkpoint nowhere.safetensors --layer memory", "there is no checkpoint nowhere.safetensors"),
        ("--checkpoint weights.pt --layer memory", "not a .safetensors file, the only kind that is read"),
        ("--checkpoint {weights} --layer memory --tokens no.npy", "the tokens no.npy cannot be read"),
        ("--checkpoint {weights} --layer memory --properties gradient", "--properties cannot be chosen"),
        ("--checkpoint {weights} --layer memory --suggest", "source is not searched: leave out --suggest"),
    ],
)
def test_what_does_not_fit(words: str, sentence: str, weights: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert sentence in refused(["cemverify", "check", HOPFIELD, *words.format(weights=weights).split()], capsys)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda w: {**w, "extra": torch.zeros(2)}, "has extra, which the model has no place for"),
        (lambda w: {k: v for k, v in w.items() if k != "head.bias"}, "lacks head.bias, which the model needs"),
        (lambda w: {**w, "head.bias": torch.zeros(5)}, r"head.bias \(5 in the file, 32 in the model\)"),
        (lambda w: {f"_orig_mod.{k}": v for k, v in w.items()}, "begin with '_orig_mod.': save the inner model's"),
    ],
    ids=["unknown", "missing", "shape", "prefix"],
)
def test_a_tensor_that_does_not_fit_is_named(change: Any, sentence: str, tmp_path: Path) -> None:
    model = hopfield_block.build().model
    path = tmp_path / "weights.safetensors"
    save_file(change({name: tensor.clone() for name, tensor in model.state_dict().items()}), path)
    with pytest.raises(UsageError, match=sentence):
        load_weights(model, path)


def test_tied_parameters_are_in_the_file_once(tmp_path: Path) -> None:
    def tied() -> Any:
        model: Any = nn.Sequential(nn.Embedding(5, 3), nn.Linear(3, 5, bias=False))
        model[1].weight = model[0].weight
        return model

    path, model, fresh = tmp_path / "weights.safetensors", tied(), tied()
    save_model(model, str(path))
    assert load_weights(fresh, path).tensors == 1
    assert torch.equal(fresh.get_parameter("1.weight"), model.get_parameter("0.weight"))


class _Called(nn.Module):
    """A layer with more arguments than a state and a memory."""

    def forward(self, hidden_states: Tensor, mask: object, memory: Tensor) -> Tensor:
        return memory - hidden_states


class _Reader(nn.Sequential):
    """Calls its layer with keywords, as models of transformers do."""

    def forward(self, ids: Tensor) -> Any:
        h = self[0](ids)
        return self[1](hidden_states=h, mask=None, memory=2 * h)


def test_inputs_get_keywords_by_name_and_their_answer_is_not_called_the_layers() -> None:
    model, tokens = _Reader(nn.Embedding(8, 3), _Called()), TokenRows(torch.zeros(1, 2, dtype=torch.int64), "zeros")
    form = energy_layer(update=lambda x, m: m - x, energy=lambda x, m: ((x - m) ** 2).sum(-1) / 2, dim=3)
    caught = catch(model, model[1], "layer", form, lambda **named: (named["hidden_states"], named["memory"]), tokens)
    torch.testing.assert_close(caught.memory["memory"], 2 * caught.x["x"])
    with pytest.raises(UsageError, match=r"inputs returned for 'layer' .*NoneType"):
        catch(model, model[1], "layer", form, lambda **named: (named["memory"], None), tokens)
