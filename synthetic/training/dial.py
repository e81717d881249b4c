"""Depth as a dial: the same parameters with any number of steps, drawn for each batch or chosen at test time."""

from __future__ import annotations

from random import Random

from torch import nn

from cemverify.cem.layers import CEMLayer


def turn(model: nn.Module, steps: int, step_size: float, least_fall: float = 0.0) -> None:
    """From now on every CEM layer of the model takes so many steps of that size.

    Args:
        least_fall: tokens stop earlier, after a step that lowers the energy by less than this share of what their
            first step did; 0: none does.

    Raises:
        ValueError: a layer's steps differ from one another.
    """
    for layer in model.modules():
        if isinstance(layer, CEMLayer):
            layer.set_steps(steps, step_size, least_fall)


def drawn_depth(most: int, seed: int, step: int) -> int:
    """T of one training step, uniform in 1 ... most; a training that goes on draws what it would have drawn."""
    return Random(f"depth/{seed}/{step}").randint(1, most)  # noqa: S311  (no secret)
