"""What a training holds on a GPU, counted on fake tensors and set beside the formula of `--estimate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch.nn import functional as F

from benchmarks.rehearsal.watching import a_gpu
from cemverify.cem import presets
from cemverify.cem.models import LanguageModel, LanguageModelConfig
from synthetic.training import footprint
from synthetic.training.looped import LoopedConfig
from synthetic.training.recipe import Recipe
from synthetic.training.training import adamw, autocast

WITHIN = 0.1


@dataclass(frozen=True)
class Weighed:
    """One model in one window of the paper's context, in bytes.

    Attributes:
        size: of the paper's Table 1. steps: T of full CEM; None is Llama.
        counted, formula: of the weights, of the optimiser's state, and what is kept for the backward pass.
        most: the most that was alive at a time, gradients and passing values too.
    """

    size: str
    steps: int | None
    counted: Mapping[str, int]
    formula: Mapping[str, int]
    most: int

    @property
    def agrees(self) -> bool:
        """Whether the formula is right to a tenth in every part."""
        return all(abs(self.formula[part] / counted - 1) <= WITHIN for part, counted in self.counted.items())

    def line(self) -> str:
        """For a log."""
        model = f"{self.size} " + ("Llama" if self.steps is None else f"full CEM T={self.steps}")
        parts = (
            f"{part} {c / 1e6:,.0f} MB (formula {self.formula[part] / c:.3f})" for part, c in self.counted.items()
        )
        return f"{model}: {', '.join(parts)}, at most {self.most / 1e6:,.0f} MB"


def weigh(size: str, steps: int | None, context: int = presets.CONTEXT) -> Weighed:
    """Counted with one layer and with two: every further one adds as much."""
    config = presets.llama(size) if steps is None else presets.full_cem(size, steps)
    one, two = (_counted(replace(config, layers=layers), context) for layers in (1, 2))
    counted = {part: one[part] + (config.layers - 1) * (two[part] - one[part]) for part in one}
    parameters = counted["weights"] // 4
    formula = {
        "weights": 4 * parameters,
        "optimiser": 8 * parameters,
        "kept": footprint.kept(LoopedConfig(config), context),
    }
    most = counted.pop("most")
    return Weighed(size, steps, counted, formula, most)


def _counted(config: LanguageModelConfig, context: int) -> dict[str, int]:
    """Bytes of a step on one window, with the paper's optimiser."""
    recipe = Recipe(1, batch=1, context=context, precision="bfloat16")
    with a_gpu() as watch:
        model = LanguageModel(config, torch.Generator("cpu"))
        weights = watch.now
        optimiser = adamw(model, recipe)
        tokens = torch.zeros(1, context + 1, dtype=torch.int64)
        begun = watch.now
        with autocast(recipe, "cuda"):
            logits = model(tokens[:, :-1])
        loss = F.cross_entropy(logits.float().mT, tokens[:, 1:])
        del logits
        kept = watch.now - begun
        loss.backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
        return {"weights": weights, "optimiser": watch.now - begun, "kept": kept, "most": watch.most}
