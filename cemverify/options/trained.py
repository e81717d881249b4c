"""The options of `cemverify check --checkpoint`."""

from __future__ import annotations

import argparse
from pathlib import Path

SEQUENCES, LENGTH = 4, 64  # of random tokens


DESCRIPTION = """\
With --checkpoint, IMPLEMENTATION is a function without arguments that builds a model: it returns a torch.nn.Module,
or cemverify.TrainedModel(model, declare=...) where the layer's energy has to be declared. The layer is judged with
its trained weights, on what the model feeds it. The model runs in this process: --examples, --workers, --seconds,
--timeout and --memory have no effect.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of trained weights."""
    group = parser.add_argument_group("trained weights", DESCRIPTION)
    group.add_argument(
        "--checkpoint", type=Path, metavar="FILE", help="judge a layer with these weights, a .safetensors file"
    )
    group.add_argument("--layer", metavar="NAME", help="the sub-module to judge, such as blocks.0.attention")
    group.add_argument(
        "--tokens",
        type=Path,
        metavar="FILE",
        help=f"what the model reads: a .npy file of integers (B, J) (default: {SEQUENCES} x {LENGTH} random tokens)",
    )
