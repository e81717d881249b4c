"""Faults of the pre-norm block."""

from __future__ import annotations

from dataclasses import replace

from cemverify.power.mutants.base import Part, Zoo

ZOO = Zoo("block")


def one_for_both(option: str) -> Part:
    """A block whose MLP reads an option of attention's."""
    return lambda usual, h, w, c: usual.block(
        h, w, replace(c, mlp=replace(c.mlp, **{option: getattr(c.attention, option)}))
    )


ZOO += [
    ZOO.but("block-starts-at-the-norm", "The block overwrites h by N(h) and starts there, as Algorithm 1 prints it.",
        "tying/block/pre-norm", also=("gradient/block/any-options",),
        sublayer=lambda usual, layer, h, w, c: usual.sublayer(layer, usual.norm(h, w, c), w, c)),
    ZOO.but("one-depth-for-both", "The MLP takes as many steps as attention.",
        "gradient/block/any-options", needs=("steps",), block=one_for_both("steps")),
    ZOO.edited("parallel-block", "Attention and MLP both read the block's input, as parallel blocks do.",
        "gradient/block/any-options", ("        for name, layer", "        ends = []\n        for name, layer"),
        ("h = self.sublayer(layer, h, own, config)\n        return h",
         "ends.append(self.sublayer(layer, h, own, config))\n        return ends[0] + ends[1] - h"),
        also=("tying/block/pre-norm",)),
]  # fmt: skip
