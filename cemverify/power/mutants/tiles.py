"""Faults of attention that is evaluated in tiles: edges, truncation, the running maximum, recomputation."""

from __future__ import annotations

from cemverify.power.fused import Tiled
from cemverify.power.mutants.base import Zoo

ZOO = Zoo("tiles")


ZOO += [
    ZOO.edited("sum-is-not-rescaled", "The running sum is not rescaled when the maximum grows.",
        "gradient/attention/plain", ("total * (maximum - safe).exp()", "total"), base=Tiled),
    ZOO.but("tile-sees-its-own-future",
        "Columns are truncated at the end of the tile of rows, and the mask inside it is forgotten.",
        "structure/attention/causality", "*", hidden=lambda _, i, j: j // 2 > i // 2),
    ZOO.edited("recalls-the-state-before",
        "In the backward pass a step is recalled from the state of the step before.",
        "training/attention/any-options",
        ("c: AttentionConfig) -> Tensor:\n        for",
         "c: AttentionConfig) -> Tensor:\n        before = None\n        for"),
        ("            x = self.advance(x, self.attention_direction(self.norm(x, w, c), h, w, c), w, c)\n", """\
            n = self.norm(x, w, c)
            heads = self.attention_direction(n, h, w, c)
            if before is not None:  # the right value with the derivative there
                there = self.attention_direction(before + (n - n.detach()), h, w, c)
                heads = there + (heads - there).detach()
            before = n.detach()
            x = self.advance(x, heads, w, c)
"""),
        cause="product*"),
]  # fmt: skip
