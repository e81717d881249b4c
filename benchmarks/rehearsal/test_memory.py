"""The GPU memory that a training needs, counted on fake tensors and compared with the formula of `--estimate`."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from benchmarks.rehearsal.watching import a_gpu
from cemverify.cem import presets
from cemverify.cem.models import LanguageModel, LanguageModelConfig
from synthetic.training import footprint
from synthetic.training.looped import LoopedConfig
from synthetic.training.recipe import Recipe
from synthetic.training.training import adamw, autocast, surprisals


@pytest.mark.parametrize("steps", [None, 1, 2, 4, 8], ids=lambda T: "llama" if T is None else f"t{T}")
@pytest.mark.parametrize("size", presets.SIZES)
def test_the_formula_of_estimate_knows_what_a_step_holds(size: str, steps: int | None) -> None:
    """Counted with one layer and with two: every further layer adds as much as the second."""
    config = presets.llama(size) if steps is None else presets.full_cem(size, steps)
    one, two = (_counted(replace(config, layers=layers), presets.CONTEXT) for layers in (1, 2))
    counted = {part: one[part] + (config.layers - 1) * (two[part] - one[part]) for part in one}
    parameters = counted["weights"] // 4
    formula = {
        "weights": 4 * parameters,
        "optimiser": 8 * parameters,
        "kept": footprint.activations(LoopedConfig(config), presets.CONTEXT),
    }
    assert formula == pytest.approx(counted, rel=0.1)


def _counted(config: LanguageModelConfig, context: int) -> dict[str, int]:
    """For a step on one window: bytes of weights, of the optimiser's state, and kept for the backward pass."""
    recipe = Recipe(1, batch=1, context=context, precision="bfloat16")
    with a_gpu() as watch:
        model = LanguageModel(config, torch.Generator("cpu"))
        weights = watch.now
        optimiser = adamw(model, recipe)
        tokens = torch.zeros(1, context + 1, dtype=torch.int64)
        begun = watch.now
        with autocast(recipe, "cuda"):
            logits = model(tokens[:, :-1])
        loss = surprisals(logits, tokens[:, 1:]).mean()
        del logits
        stored = watch.now - begun
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        return {"weights": weights, "optimiser": watch.now - begun, "kept": stored}
