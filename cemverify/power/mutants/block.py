"""Faults of the pre-norm block."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from cemverify.cem.models import BlockConfig
from cemverify.conformance.implementations.plain import Plain, Weights
from cemverify.power.mutants.base import Part, Zoo, fault

ZOO = Zoo("block")


@ZOO.part("block", "gradient/block/any-options", also=("tying/block/pre-norm",))
@fault("Attention and MLP both read the block's input, as parallel blocks do.")
def parallel_block(usual: Plain, h: Tensor, w: Weights, c: BlockConfig) -> Tensor:
    outputs = []
    for name, layer, config in (("attention", usual.attention, c.attention), ("mlp", usual.mlp, c.mlp)):
        own = {key.removeprefix(f"{name}."): value for key, value in w.items() if key.startswith(f"{name}.")}
        outputs.append(usual.sublayer(layer, h, own, config))
    return outputs[0] + outputs[1] - h


def one_for_both(option: str) -> Part:
    """A block whose MLP reads an option of attention's."""
    return lambda usual, h, w, c: usual.block(
        h, w, replace(c, mlp=replace(c.mlp, **{option: getattr(c.attention, option)}))
    )


ZOO += [
    ZOO.but("block-starts-at-the-norm", "The block overwrites h by N(h) and starts there, as Algorithm 1 prints it.",
        "tying/block/pre-norm", "answer*", also=("gradient/block/any-options",),
        sublayer=lambda usual, layer, h, w, c: usual.sublayer(layer, usual.norm(h, w, c), w, c)),
    ZOO.but("one-step-size-for-both", "The MLP uses attention's step size.",
        "gradient/block/any-options", needs=("step-size",), block=one_for_both("step_size")),
    ZOO.but("one-depth-for-both", "The MLP takes as many steps as attention.",
        "gradient/block/any-options", needs=("steps",), block=one_for_both("steps")),
]  # fmt: skip
