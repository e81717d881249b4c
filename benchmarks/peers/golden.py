"""Golden outputs: the default options on fixed numbers against stored answers, in float64 and float32.

The stored answers are the reference's; an energy layer that nobody has written before has none.
"""

from __future__ import annotations

from itertools import islice

import torch
from torch.testing import assert_close

from benchmarks.peers.cases import call, case, configurations, expected
from cemverify import Implementation


def test_golden_outputs(layer: Implementation) -> None:
    for name in layer.functions:
        for config in islice(configurations(layer, name, {"dim": 16, "heads": 4, "head_dim": 4, "hidden": 32}), 1):
            asked = case(layer, config, batch=2, tokens=12, seed=42)
            golden = expected(name, asked)
            assert_close(call(layer, name, asked), golden)
            if "dtype:float32" not in layer.not_offered:
                assert_close(call(layer, name, asked.to(torch.float32)), golden.to(torch.float32))
