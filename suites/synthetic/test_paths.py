"""What is told of the path that a training takes is what it takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from cemverify.cem.blocked import watched
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import BlockConfig, LanguageModel, LanguageModelConfig
from synthetic.training.cost import on_meta, paths, words
from synthetic.training.recipe import Recipe

D, K = 4, 2
# With 256 tokens attention is long enough for tiles, and with 4096 hidden units an MLP is wide enough.
RECIPE = Recipe(steps=1, batch=4, context=256, accumulate=4)


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
    assert paths(on_meta(config), RECIPE) == paths_by_kind
    model = LanguageModel(config, torch.Generator().manual_seed(0))
    with watched() as seen:
        model(torch.zeros(1, RECIPE.context, dtype=torch.int64))
    assert [path for _, path in seen] == [paths_by_kind[kind] for _ in range(config.layers) for kind in paths_by_kind]


def test_the_share_of_a_process_and_the_compiler_decide_too() -> None:
    model = on_meta(cem(3, 1024))
    assert paths(model, RECIPE)["mlp"] == "formula"
    assert paths(model, replace(RECIPE, accumulate=1))["mlp"] == "tiles"
    assert paths(model, replace(RECIPE, accumulate=1), processes=4)["mlp"] == "formula"
    assert paths(model, RECIPE, compiled=True) == {"attention": "formula", "mlp": "formula"}


def test_models_that_take_the_same_are_named_together() -> None:
    plain, fast = {"attention": "formula", "mlp": "formula"}, {"attention": "blocks", "mlp": "tiles"}
    assert words({"Llama": {}, "T = 1": plain, "T = 2": plain, "T = 4": fast}) == (
        "computed: PyTorch's own layers (Llama); attention by the formula, MLP by the formula (T = 1, T = 2); "
        "attention by blocks, MLP by tiles (T = 4)"
    )
    assert words({"T = 1": plain}, compiled=True).startswith(
        "computed, through torch.compile: attention by the formula"
    )
