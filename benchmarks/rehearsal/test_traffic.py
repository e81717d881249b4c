"""The kernels and memory traffic of a training step of the paper's 86M models on a GPU, plain and compiled."""

from __future__ import annotations

from math import prod

import pytest
import torch

from benchmarks.rehearsal.traffic import B, J, Meter, compiled_step, models, step_by_part
from benchmarks.rehearsal.watching import a_gpu
from cemverify.cem import blocked
from cemverify.cem.models import Block

MODELS = models()
LLAMA, ONE, PLAIN = (MODELS[f"86M {name}"] for name in ("Llama RoPE", "CEM T=1", "CEM T=1, no diagonal"))
kernels = pytest.mark.skipif(not blocked.ROWS_ON, reason="the kernels need Triton: pip install triton")


def largest_cast(path: blocked.Path) -> int:
    """The number of elements of the largest tensor that attention casts, forward and backward."""
    with a_gpu(), Meter() as meter, torch.autocast("cuda", torch.bfloat16), blocked.using(path):
        block, h = Block(ONE.block, torch.Generator("cpu")), torch.zeros(B, J, ONE.dim, requires_grad=True)
        block.attention.residual(h)[0].sum().backward()  # type: ignore[no-untyped-call]
    return max(map(int, map(prod, meter.casts)))


@kernels
def test_attention_weights_are_not_cast_by_our_kernels_as_they_are_by_tiles() -> None:
    assert largest_cast("rows") <= B * J * ONE.dim < largest_cast("tiles")


@kernels
def test_by_our_kernels_attention_moves_about_half_of_what_it_moves_by_tiles() -> None:
    by_rows, by_tiles = step_by_part(ONE)["attention"], step_by_part(ONE, "tiles")["attention"]
    assert by_rows.by_kind["our kernels"] > 0
    assert by_rows.bytes < 0.55 * by_tiles.bytes
    assert by_rows.kernels < 0.5 * by_tiles.kernels


@kernels
def test_compiled_a_block_with_a_diagonal_moves_at_most_12_gb_in_one_graph() -> None:
    """One graph: the plan asks for `fullgraph`."""
    assert compiled_step(ONE)["block"].bytes <= 12e9


def test_compiled_a_block_without_a_diagonal_moves_no_more_than_llamas() -> None:
    cem, llama = compiled_step(PLAIN), compiled_step(LLAMA)
    assert cem["block"].bytes <= 1.1 * llama["block"].bytes
    assert llama["loss"].bytes < step_by_part(LLAMA)["loss"].bytes / 4
