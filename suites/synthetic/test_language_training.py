"""A training sees the right batches, resumes bit for bit, stops if a value is not finite, and says where."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch._dynamo.utils import counters

from cemverify.cem import blocked
from cemverify.cem.blocked import watched
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.console.errors import UsageError
from synthetic.corpora.chains import ChainSpec, draw, source
from synthetic.corpora.corpus import tokenised
from synthetic.corpora.tokenisers import Symbols
from synthetic.corpora.tokens import Batches, Tokens
from synthetic.studies.side_by_side.rows import Contender, contenders
from synthetic.training.cost import cost, on_meta, paths
from synthetic.training.machine import Machine
from synthetic.training.recipe import Recipe
from synthetic.training.steps import probe
from synthetic.training.training import Saving, adamw, score, train

SMALL = contenders(vocabulary=16, dim=16, layers=2, heads=2, depths=(1, 2))
RECIPE = Recipe(steps=60, batch=4, context=8, learning_rate=1e-2)
TOKENS = Tokens(np.random.Generator(np.random.PCG64(0)).integers(0, 16, 500).astype(np.uint16))
BATCHES = Batches(TOKENS, seed=0, size=4, context=8)
THERE = torch.arange(64).remainder(16).view(4, 16)  # (B, J)


def model_of(contender: Contender, seed: int = 0) -> LanguageModel:
    return LanguageModel(contender.model, torch.Generator().manual_seed(seed))


# --- what is trained on what ----------------------------------------------------------------------


@pytest.mark.parametrize("contender", SMALL, ids=lambda c: c.name)
def test_thirty_steps_and_thirty_more_are_sixty_bit_for_bit(contender: Contender, tmp_path: Path) -> None:
    saving = Saving(tmp_path / "checkpoint.safetensors", 10, {"vocabulary": 16}, resume=True)
    straight, first, second = (model_of(contender, seed) for seed in (0, 0, 1))
    whole = train(straight, RECIPE, BATCHES)
    train(first, RECIPE, BATCHES, saving=saving, until=30)
    resumed = train(second, RECIPE, BATCHES, saving=saving)
    assert resumed.bits == whole.bits
    assert resumed.batches == whole.batches
    for one, other in zip(straight.parameters(), second.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint.safetensors"]


def test_a_batch_in_four_passes_is_a_batch_in_one() -> None:
    at_once, in_passes = model_of(SMALL[-1]).double(), model_of(SMALL[-1]).double()
    exact = replace(RECIPE, steps=5, precision="float64")
    one, four = train(at_once, exact, BATCHES), train(in_passes, replace(exact, accumulate=4), BATCHES)
    # in float64 the order of a sum affects only the last digits
    assert one.bits == pytest.approx(four.bits, rel=1e-12)


@pytest.mark.parametrize("contender", SMALL, ids=lambda c: c.name)
def test_bfloat16_learns_with_float32_parameters(contender: Contender) -> None:
    batches = Batches(Tokens(np.arange(5000, dtype=np.uint16) % 7), seed=0, size=4, context=8)
    model, recipe = model_of(contender), replace(RECIPE, precision="bfloat16")
    training = train(model, recipe, batches)
    assert training.bits[-1] < training.bits[0] / 2
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    assert not torch.equal(score(model, batches(0), RECIPE), score(model, batches(0), recipe))  # precision was used


@pytest.mark.parametrize("contender", SMALL, ids=lambda c: c.name)
def test_compiled_it_is_the_same_training_in_one_graph_for_all_blocks_and_one_for_the_loss(
    contender: Contender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager", fullgraph=True))
    torch.compiler.reset()
    before = counters["stats"]["unique_graphs"]
    exact = replace(RECIPE, steps=5, precision="float64", accumulate=2)
    trained, plain = model_of(contender).double(), model_of(contender).double()
    compiled = train(trained, exact, BATCHES, Machine(compiled=True))
    assert counters["stats"]["unique_graphs"] == before + 2
    assert compiled.bits == pytest.approx(train(plain, exact, BATCHES).bits, rel=1e-12)
    score(trained, BATCHES(0), exact)
    assert counters["stats"]["unique_graphs"] == before + 2, "what is scored is not compiled"


def test_matrices_are_decayed_vectors_are_not_and_the_embedding_as_it_is_told() -> None:
    for contender, own in product(SMALL, (0.1, 0.03)):
        model = model_of(contender)
        names = {id(parameter): name for name, parameter in model.named_parameters()}
        groups = adamw(model, replace(RECIPE, embedding_decay=own)).param_groups
        members = {g["weight_decay"]: {names[id(p)].rpartition(".")[2] for p in g["params"]} for g in groups}
        assert {"head", "W_Q", "W_K"} <= members[0.1]
        assert "embedding" in members[own]
        assert own == 0.1 or members[own] == {"embedding"}
        assert members[0.0] <= {"gain", "diagonal", "p"}
        assert sum(len(group["params"]) for group in groups) == len(names)


def test_the_defaults_are_those_of_table_2() -> None:
    recipe = Recipe(200, 1, 1)
    assert (recipe.learning_rate, recipe.betas, recipe.eps) == (0.002, (0.9, 0.95), 1e-9)
    assert (recipe.weight_decay, recipe.clip, recipe.final, recipe.warm_up) == (0.1, 1.0, 0.1, 0.05)
    rates = [recipe.learning_rate_at(step) for step in range(200)]
    assert max(rates) == rates[9] == recipe.learning_rate  # 5 % of the steps
    assert rates[:10] == sorted(rates[:10])
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[-1] == pytest.approx(0.1 * recipe.learning_rate)


# --- checkpoints ----------------------------------------------------------------------------------


def checkpoint(path: Path, specification: dict[str, Any]) -> Saving:
    saving = Saving(path, 1, specification, resume=True)
    train(model_of(SMALL[0]), replace(RECIPE, steps=1), BATCHES, saving=saving)
    return saving


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"vocabulary": 17, "recipe": {"steps": 2}}, "vocabulary of 16, but this corpus has 17"),
        ({"vocabulary": 16, "recipe": {"steps": 3}}, "of another run: recipe.steps differ"),
    ],
)
def test_the_checkpoint_of_another_run_is_refused(wanted: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    saving = checkpoint(tmp_path / "checkpoint.safetensors", {"vocabulary": 16, "recipe": {"steps": 2}})
    with pytest.raises(UsageError, match=sentence):
        train(model_of(SMALL[0]), RECIPE, BATCHES, saving=replace(saving, specification=wanted))


def test_a_checkpoint_that_cannot_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UsageError, match=r"cannot write .*name another folder with --folder"):
        checkpoint(tmp_path / "file" / "checkpoint.safetensors", {})


# --- when a value is not finite -------------------------------------------------------------------


def lose(model: LanguageModel, name: str, value: float) -> LanguageModel:
    with torch.no_grad():
        model.get_parameter(name).fill_(value)
    return model


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("blocks.1.mlp.V", 1e30, "layer 2, MLP, recursion step 1 of 2"),
        ("blocks.0.attention.W_Q", 1e38, "layer 1, attention, recursion step 1 of 2"),
        ("blocks.1.attention.norm.gain", math.nan, "the parameter blocks.1.attention.norm.gain"),
        ("head", 3e38, "the logits"),
    ],
)
def test_a_lost_number_is_traced_to_its_layer_and_recursion_step(name: str, value: float, where: str) -> None:
    model = lose(model_of(SMALL[-1]), name, value)
    before = [parameter.clone() for parameter in model.parameters()]
    training = train(model, RECIPE, BATCHES)
    assert (training.diverged_at, training.bits) == (1, ())
    assert training.where == where
    for one, other in zip(before, model.parameters(), strict=True):  # no update was made from it
        assert torch.equal(one.nan_to_num(), other.nan_to_num())


def scalar_model(mlp: MLPConfig, W: float) -> LanguageModel:
    """A model with one dimension, no norm and no queries; V and all embeddings are 1."""
    block = BlockConfig(AttentionConfig(1, 1), mlp)
    model = LanguageModel(LanguageModelConfig(16, 1, block), torch.Generator().manual_seed(0))
    for name, value in (
        ("embedding", 1),
        ("blocks.0.attention.W_Q", 0),
        ("blocks.0.mlp.V", 1),
        ("blocks.0.mlp.W", W),
    ):
        lose(model, name, value)
    return model


def test_a_recursion_that_overflows_late_is_traced_to_the_late_step() -> None:
    """Each step multiplies x by about -3e12, so that the fourth is beyond float32."""
    training = train(scalar_model(MLPConfig(1, 1, activation="identity", steps=6), -3e12), RECIPE, BATCHES)
    assert training.where == "layer 1, MLP, recursion step 4 of 6"


# --- what is measured -----------------------------------------------------------------------------


@pytest.mark.parametrize(("gate", "share"), [(-3.0, 1.0), (-4.0, 0.0)])
def test_an_energy_that_rises_is_seen_to_rise(gate: float, share: float) -> None:
    """With SiLU at x = h = 1, a step of 1 lowers the energy for W = -3 and overshoots for W = -4."""
    attention, mlp = probe(scalar_model(MLPConfig(1, 1), gate), THERE)
    assert [(layer.layer, layer.kind, layer.smallest_eigenvalue) for layer in (attention, mlp)] == [
        *((1, "attention", 1.0), (1, "MLP", 1.0))
    ]
    assert attention.falls == (0.0,)  # without queries its energy is constant, which is not a fall
    assert mlp.falls == (share,)
    assert mlp.promised == 1.0  # a step within the bound lowers both


def test_a_fall_is_counted_for_each_step_and_as_a_share_of_the_tokens() -> None:
    """ReLU, W = -3: the first step takes x = 1 to -2 and its energy from 3/2 to 0; x = -1 stays at 0."""
    model = scalar_model(MLPConfig(1, 1, activation="relu", steps=2), -3)
    with torch.no_grad():
        model.embedding[1] = -1
    _, mlp = probe(model, torch.tensor([[0, 0, 0, 1], [0, 0, 0, 1]]))
    assert mlp.falls == (0.75, 0.0)
    assert mlp.energies == (0.75 * 1.5, 0.0, 0.0)


def test_nothing_is_promised_of_an_indefinite_or_per_head_preconditioner() -> None:
    block = BlockConfig(
        AttentionConfig(16, 2, preconditioner=PreconditionerConfig("diagonal", per_head=True)),
        MLPConfig(16, 32, preconditioner=PreconditionerConfig("low-rank-printed")),
    )
    model = LanguageModel(LanguageModelConfig(16, 1, block), torch.Generator().manual_seed(0))
    U, V = (model.get_parameter(f"blocks.0.mlp.preconditioner.{name}") for name in "UV")
    with torch.no_grad():
        V.copy_(-100 * U)
    attention, mlp = probe(model, THERE)
    assert attention.promised is None
    assert mlp.promised is None
    assert (mlp.smallest_eigenvalue or 0) < 0


def test_the_flops_are_those_of_the_formulas() -> None:
    context = 16
    D, L, J, V = 32, 2, context, 16
    KR = D
    llama, _, *cems = contenders(V, dim=D, layers=L, heads=2, depths=(1, 2))
    M = llama.model.block.mlp.hidden
    assert cost(llama.model, context).forward == L * (8 * D * KR + 4 * J * KR + 6 * D * M) + 2 * D * V
    for contender in cems:
        mlp: Any = contender.model.block.mlp
        M, T = mlp.hidden, mlp.steps
        attention = 2 * D * KR + T * (4 * D * KR + 4 * J * KR + 4 * J * D)  # the last term is the shared diagonal's
        flops = cost(contender.model, context)
        assert flops.forward == L * (attention + (2 + 4 * T) * D * M) + 2 * D * V
        assert 2.5 < flops.training / flops.forward <= 3


# --- the stored losses ----------------------------------------------------------------------------


LOSSES = Path(__file__).with_name("losses.json")


def test_the_first_losses_are_those_on_file(tmp_path: Path) -> None:
    """In float64, where machines differ only in the last digits. An intended change of them rewrites the file."""
    chain = draw(ChainSpec("hidden", vocabulary=32, states=8, train=2**14, validation=2**10))
    corpus = tokenised(source(chain), Symbols(32), tmp_path)
    batches = Batches(corpus.train.tokens, seed=0, size=4, context=32)
    recipe = Recipe(steps=40, batch=4, context=32, learning_rate=1e-2, precision="float64")
    found = {
        contender.name: list(train(model_of(contender).double(), recipe, batches, until=6).bits)
        for contender in contenders(32, dim=32, layers=2, heads=2, depths=(1, 2, 3))
    }
    on_file = json.loads(LOSSES.read_text())
    assert found.keys() == on_file.keys()
    for name, bits in on_file.items():
        assert found[name] == pytest.approx(bits, rel=1e-11), json.dumps(found, indent=1)


# --- a training takes the path that is reported -------------------------------------------------------


D, K = 4, 2
# With 256 tokens attention is long enough for tiles, and with 4096 hidden units an MLP is wide enough.
LONG = Recipe(steps=1, batch=4, context=256, accumulate=4)


def cem(steps: int, hidden: int = 8, **options: object) -> LanguageModelConfig:
    attention = AttentionConfig(D, K, steps=steps, **options)  # type: ignore[arg-type]
    return LanguageModelConfig(16, 2, BlockConfig(attention, MLPConfig(D, hidden, steps=steps)))


@pytest.mark.parametrize(
    ("config", "paths_by_kind"),
    [
        (cem(1), {"attention": "formula", "mlp": "formula"}),
        (cem(2, position="alibi", diagonal="shared"), {"attention": "tiles", "mlp": "formula"}),
        (cem(3, 4096), {"attention": "blocks", "mlp": "tiles"}),
        (LanguageModelConfig(16, 1, BlockConfig(LlamaAttentionConfig(D, K), SwiGLUConfig(D, 8))), {}),
    ],
    ids=["one step", "with diagonal and bias", "three steps", "Llama"],
)
def test_what_is_told_is_what_is_taken(config: LanguageModelConfig, paths_by_kind: dict[str, str]) -> None:
    assert paths(on_meta(config), LONG) == paths_by_kind
    model = LanguageModel(config, torch.Generator().manual_seed(0))
    with watched() as seen:
        model(torch.zeros(1, LONG.context, dtype=torch.int64))
    assert [path for _, path in seen] == [paths_by_kind[kind] for _ in range(config.layers) for kind in paths_by_kind]


def test_the_size_of_a_pass_and_the_compiler_decide_too() -> None:
    model = on_meta(cem(3, 1024))
    assert paths(model, LONG)["mlp"] == "formula"
    assert paths(model, replace(LONG, accumulate=1))["mlp"] == "tiles"
    assert paths(model, LONG, compiled=True) == {"attention": "formula", "mlp": "formula"}


def test_what_is_told_of_a_gpu_is_what_is_taken_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "ROWS_ON", {"cuda"})
    narrow = replace(LONG, precision="bfloat16")
    told = {
        (name, compiled): paths(on_meta(config), narrow, device="cuda", compiled=compiled)["attention"]
        for compiled in (False, True)
        for name, config in {
            "diagonal": cem(2, position="alibi", diagonal="shared"),
            "many steps": cem(3, position="alibi", diagonal="shared"),
            "no diagonal": cem(2, position="alibi"),
        }.items()
    }
    assert told == {
        ("diagonal", False): "rows",
        ("many steps", False): "blocks",
        ("no diagonal", False): "formula",  # with ALiBi as features
        ("diagonal", True): "rows",
        ("many steps", True): "rows",
        ("no diagonal", True): "formula",
    }
