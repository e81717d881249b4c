"""`synthetic language train`: its output and files, and when it passes."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cemverify.cem import devices
from cemverify.cem import presets as paper
from cemverify.console.parsing import again as again_
from cemverify.results import envelope
from cemverify.results.tables import terminal
from suites.kit.commands import Told
from synthetic.__main__ import NO_MATTER, main
from synthetic.__main__ import _parser as parser_of
from synthetic.language import COMMANDS
from synthetic.language.arguments import Command
from synthetic.studies.side_by_side import rows as presets
from synthetic.studies.side_by_side.conclusion import reasons_to_fail
from synthetic.studies.side_by_side.rows import Contender, LanguageConfig, contenders, smoke, smoke_on_cuda, tiny
from synthetic.studies.side_by_side.trainings import ModelResult
from synthetic.training import machine
from synthetic.training.cost import Cost, parameters
from synthetic.training.training import Training

# runs `python -m synthetic language train`; returns the exit code and the result
Study = Callable[..., tuple[int, dict[str, Any]]]

CHAIN = ("--corpus", "hidden", "--symbols", "8", "--states", "4", "--length", "50000")
TRAIN = ("language", "train", "--preset", "tiny", "--device", "cpu", "--workers", "1")


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Study:
    """The exit code and the result file of `python -m synthetic language train`, on a small source."""
    corpora = tmp_path_factory.mktemp("corpora")

    def run(output: Path, *arguments: str, chain: Sequence[str] = CHAIN) -> tuple[int, dict[str, Any]]:
        places = ("--corpora", str(corpora), "--output", str(output))
        return main([*TRAIN, *chain, *places, *arguments]), envelope.read(output)

    return run


@pytest.fixture(scope="module")
def short(study: Study, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The result of a run too short to pass."""
    code, content = study(tmp_path_factory.mktemp("short") / "language.json", "--steps", "3")
    assert code == 1
    return content


# --- what is trained ------------------------------------------------------------------------------


def test_the_smoke_has_the_published_sizes_and_on_a_gpu_the_papers_smallest() -> None:
    """With the paper's vocabulary it has the parameters of docs/mathematics.md §15."""
    D, K, layers = 672, 8, 8
    shared = 70_082_208 - layers * (K * D * (1 + 2 * 4) - D + 2 * 16 * D)  # one diagonal P each, none of low rank
    expected = {"Llama RoPE": 86_371_488, "Llama ALiBi": 86_371_488, "CEM T=1": shared, "CEM T=2": shared}
    study = smoke_on_cuda(paper.VOCABULARY)
    # the gains of the inner norms, 2 per block, are those of the block
    assert {c.name: parameters(c.model) for c in study.contenders} == expected
    small = {c.name: parameters(c.model) for c in smoke(256).contenders}
    names = [*expected, "CEM T=3"]
    assert small == {name: 857_216 if name.startswith("Llama") else 723_584 for name in names}
    assert (study.recipe.context, study.recipe.precision, study.recipe.learning_rate) == (2048, "bfloat16", 0.002)


@pytest.mark.slow
def test_side_by_side_is_one_after_another_bit_for_bit(short: dict[str, Any], study: Study, tmp_path: Path) -> None:
    _, again = study(tmp_path / "again.json", "--steps", "3", "--workers", "2")
    for first, second in zip(short["models"], again["models"], strict=True):
        assert first["training_bits_per_token"] == second["training_bits_per_token"]
        assert first["validation_bits_per_byte"] == second["validation_bits_per_byte"]
    _, other = study(tmp_path / "other.json", "--steps", "3", "--seed", "1", "--models", "llama-rope")
    assert other["models"][0]["batches_digest"] != short["models"][0]["batches_digest"]


@pytest.mark.slow
def test_a_model_of_each_kind_beats_the_bigram_model_and_none_the_floor(study: Study, tmp_path: Path) -> None:
    chain = ("--corpus", "markov", "--symbols", "6", "--length", "200000")
    models = ("--models", "llama-rope", "cem-t2")
    code, content = study(tmp_path / "language.json", "--steps", "50", *models, chain=chain)
    assert code == 0, content["verdict"]["reasons"]
    assert content["verdict"]["reasons"] == []
    corpus = content["corpus"]
    for model in content["models"]:
        assert corpus["floor_bits_per_byte"] < model["validation_bits_per_byte"] < corpus["bits_per_byte"]["bigram"]
    assert "above floor" in content["tables"][0]["columns"]


def test_an_interrupted_study_goes_on_to_the_same_losses(
    short: dict[str, Any], study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = ("--steps", "3", "--folder", str(tmp_path / "runs"))
    study(tmp_path / "language.json", *folder, "--save-every", "2")
    capsys.readouterr()
    _, content = study(tmp_path / "language.json", *folder, "--resume")  # finds every model done
    assert not re.search(r"step \d", capsys.readouterr().err), "no step is taken again"
    for first, again in zip(short["models"], content["models"], strict=True):
        assert first["training_bits_per_token"] == again["training_bits_per_token"]
        assert first["validation_bits_per_byte"] == again["validation_bits_per_byte"]
    runs = tmp_path / "runs" / "cem-t2"
    names = sorted(path.name for path in runs.iterdir())
    assert names == ["checkpoint.safetensors", "weights.safetensors"]
    assert "nan" not in terminal(envelope.tables_of(content)[:1])


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("--folder runs", "interrupted; the same command with --resume goes on"),
        (
            "",
            "interrupted; nothing was kept: --folder DIR keeps each finished model, --save-every N also checkpoints",
        ),
    ],
)
def test_an_interrupt_says_how_to_go_on(
    words: str, sentence: str, here: Path, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("synthetic.language.train.train_side_by_side", interrupted)
    assert told(shlex.join(["synthetic", *TRAIN, *words.split()]), 130).err == f"error: {sentence}\n"


@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_a_help_names_every_option_and_its_examples_are_commands(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "240")  # each example on one line
    with pytest.raises(SystemExit):
        parser_of(["language"]).parse_args(["language", *([name] if name else []), "--help"])
    text = capsys.readouterr().out
    examples = re.split(r"\nexamples?:", text)[-1].splitlines()
    lines = [re.split(r" {3,}", line.partition(" language ")[2])[0] for line in examples if " language " in line]
    assert lines
    for line in lines:
        parser_of(["language"]).parse_args(["language", *shlex.split(line)])
    if name:
        command = Command(prog=name)
        COMMANDS[name].add_arguments(command)
        options = {option for action in command._actions for option in action.option_strings} - {"-h", "--help"}
        assert set(re.findall(r"--[a-z-]+", text)) >= options


def test_the_command_in_a_result_file_is_what_was_given_without_what_changes_nothing() -> None:
    line = "language train --output o.json --preset tiny --workers=2 --folder f --text a 'b c' --resume --steps 3"
    assert again_(("python", "-m", "synthetic"), shlex.split(line), NO_MATTER) == (
        "python -m synthetic language train --preset tiny --text a 'b c' --steps 3"
    )


# --- what is written ------------------------------------------------------------------------------


def test_the_result_file_holds_what_was_printed(
    study: Study, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, content = study(tmp_path / "deep" / "language.json", "--steps", "2")
    printed = capsys.readouterr()
    assert terminal(envelope.tables_of(content)) in printed.out
    assert printed.out.endswith(f"python -m reports pictures {tmp_path}/deep/language.json\n")
    assert "step 2/2" in printed.err
    # as with embeddings of the usual scale
    assert "WARNING: before training, a first step is longer than the stream (CEM T=2: " in printed.err
    assert "computed: PyTorch's own layers (Llama" in printed.out
    assert "attention by the formula, MLP by the formula (CEM" in printed.out
    assert {str(model["paths"]) for model in content["models"]} == {
        "{}",  # Llama
        "{'attention': 'formula', 'mlp': 'formula'}",
    }
    assert content["kind"] == "language"
    assert content["made_by"]["configuration"]["recipe"]["steps"] == 2
    assert "--corpus hidden" in content["made_by"]["command"]
    for model in content["models"]:
        assert len(model["training_bits_per_token"]) == 2
        assert model["peak_bytes"] > 0
        assert 0 < model["utilisation"] < 1.5  # the peak is measured, so it may seem exceeded if other programs run


def test_a_model_no_better_than_a_bigram_fails_with_a_reason(short: dict[str, Any]) -> None:
    assert not short["verdict"]["pass"]
    assert len({model["batches_digest"] for model in short["models"]}) == 1
    assert [reason.split(" needs")[0] for reason in short["verdict"]["reasons"]] == [
        *("Llama RoPE", "Llama ALiBi", "CEM T=1", "CEM T=2")
    ]
    assert all("bigram" in reason for reason in short["verdict"]["reasons"])


def test_a_diverging_run_is_reported_and_fails(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def exploding(vocabulary: int) -> LanguageConfig:
        return replace(tiny(vocabulary), recipe=replace(tiny(vocabulary).recipe, learning_rate=math.inf))

    monkeypatch.setattr(presets, "PRESETS", {"tiny": {"cpu": exploding, "cuda": exploding}})
    code, content = study(tmp_path / "language.json")
    assert code == 1
    for model, row in zip(content["models"], content["tables"][0]["rows"], strict=True):
        assert model["diverged_at"] == 2  # the weights are finite in the first step
        assert len(model["training_bits_per_token"]) == 1
        assert model["validation_bits_per_byte"] is None
        assert "diverged at step 2" in row
    assert len(content["verdict"]["reasons"]) == 4
    assert "CEM T=2 diverged at step 2: a value is not finite, first in the parameter" in capsys.readouterr().out


def test_an_energy_that_rises_where_it_must_fall_fails_the_study(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cemverify.cem.energies import Interaction

    right = Interaction.gradient
    monkeypatch.setattr(Interaction, "gradient", lambda self, x, memory: -right(self, x, memory))
    _, content = study(tmp_path / "language.json", "--steps", "1", "--depths", "1")
    assert any("attention in layer 1 rises where it must fall" in reason for reason in content["verdict"]["reasons"])


def test_a_model_far_behind_the_baseline_fails() -> None:
    rotary, alibi, cem, _ = contenders(8, 32, 2, 2, (1, 2))

    def entry(contender: Contender, bits: float) -> ModelResult:
        training = Training((bits,), None, None, 1.0, "")
        return ModelResult(contender, 1, Cost(1, 1), training, torch.full((4,), bits).double(), (), 1)

    level = [entry(rotary, 1.0), entry(alibi, 2.0), entry(cem, 2.2)]  # CEM has the positions of the second
    assert reasons_to_fail(level, bigram=3.0, band=1.15, floor=None) == []
    still = replace(level[0], training=replace(level[0].training, bits=(1.5, 1.5)))
    assert reasons_to_fail([still], bigram=3.0, band=1.15, floor=None) == [
        "the loss of Llama RoPE does not fall: 1.500 bits per token at first, 1.500 at last"
    ]
    behind = [*level[:2], entry(cem, 2.4)]
    assert reasons_to_fail(behind, bigram=3.0, band=1.15, floor=None) == [
        "CEM T=1 needs 2.400 bits per token, more than 1.15 times the 2.000 of the best baseline"
    ]
    floor = torch.full((4,), 2.3).double()
    assert any("something leaks" in reason for reason in reasons_to_fail(level, 3.0, 1.15, floor))


def test_without_a_compiler_training_goes_on_with_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(_: Any) -> Any:
        raise RuntimeError("ptxas is too old\nand so on")

    def said(device: str, asked: bool | None) -> str:
        assert not machine.compiles(device, asked)
        return capsys.readouterr().err

    assert said("cpu", None) == said("cuda", False) == ""
    monkeypatch.setattr(torch, "compile", fail)
    assert "torch.compile fails on this machine (ptxas is too old); training goes on" in said("cpu", True)
    monkeypatch.setattr(devices, "find_spec", lambda _: None)
    assert "on a GPU needs Triton" in said("cuda", None)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    assert "needs a C++ compiler" in said("cpu", True)


@pytest.mark.gpu
@pytest.mark.slow
def test_the_smoke_passes_on_a_gpu_in_bfloat16(study: Study, tmp_path: Path) -> None:
    code, content = study(tmp_path / "language.json", "--device", "cuda", "--preset", "smoke", "--corpus", "library")
    assert code == 0, content["verdict"]["reasons"]
    assert content["made_by"]["device"]["type"] == "cuda"
    assert content["made_by"]["configuration"]["recipe"]["precision"] == "bfloat16"
