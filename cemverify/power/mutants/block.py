"""Faults of the pre-norm block."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor

from cemverify.cem.models import BlockConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("block")


ZOO += [
    ZOO.but("block-starts-at-the-norm", "The block overwrites h by N(h) and starts there, as Algorithm 1 prints it.",
        "tying/block/pre-norm", "block = standard*", also=("gradient/block/any-options",),
        sublayer=lambda usual, layer, h, w, c: usual.sublayer(layer, usual.norm(h, w, c), w, c)),
]  # fmt: skip


@ZOO.killed_by(
    "Attention and MLP both read the block's input, as parallel blocks do.",
    "gradient/block/any-options",
    also=("tying/block/pre-norm",),
)
class ParallelBlock(Plain):
    def block(self, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
        outputs = []
        for name, layer, config in (("attention", self.attention, c.attention), ("mlp", self.mlp, c.mlp)):
            own = {key.removeprefix(f"{name}."): value for key, value in w.items() if key.startswith(f"{name}.")}
            outputs.append(self.sublayer(layer, h, own, config))
        return outputs[0] + outputs[1] - h


@ZOO.killed_by("The MLP comes before attention.", "gradient/block/any-options", also=("tying/block/pre-norm",))
class MLPFirst(Plain):
    def block(self, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
        for name, layer, config in (("mlp", self.mlp, c.mlp), ("attention", self.attention, c.attention)):
            own = {key.removeprefix(f"{name}."): value for key, value in w.items() if key.startswith(f"{name}.")}
            h = self.sublayer(layer, h, own, config)
        return h


@ZOO.killed_by("The sublayers' memory is h instead of N(h).", "gradient/block/any-options", needs=("norm:channel",))
class MemoryWithoutNorm(Plain):
    def sublayer(self, layer: Any, h: Tensor, w: Weights, c: Any) -> Tensor:
        output: Tensor = layer(h, h, w, c)
        return output


@ZOO.killed_by("The MLP's norm uses attention's gain.", "gradient/block/any-options", needs=("norm:channel",))
class OneGainForBoth(Plain):
    def block(self, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
        gain = {"mlp.gain": w["attention.gain"]} if "mlp.gain" in w else {}
        return super().block(h, {**w, **gain}, c)


@ZOO.killed_by("The MLP uses attention's step size.", "gradient/block/any-options", needs=("step-size",))
class OneStepSizeForBoth(Plain):
    def block(self, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
        config: Any = c
        mlp = replace(config.mlp, step_size=config.attention.step_size)
        return super().block(h, w, replace(c, mlp=mlp))


@ZOO.killed_by("The MLP takes as many steps as attention.", "gradient/block/any-options", needs=("steps",))
class OneDepthForBoth(Plain):
    def block(self, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
        config: Any = c
        mlp = replace(config.mlp, steps=config.attention.steps)
        return super().block(h, w, replace(c, mlp=mlp))
