"""The update of energy layers at extreme states, memories and lengths."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from cemverify.conformance.asking.boxes import Box
from cemverify.conformance.oracle.evidence import Evidence
from cemverify.conformance.properties.base import Property
from cemverify.conformance.properties.explanations import AT_TIES, AT_ZERO, Explanation
from cemverify.conformance.properties.layers.base import Cases, energy_layer_property, states
from cemverify.conformance.properties.layers.gradient import (
    GRADIENT_STEP,
    map_is_the_lagrangians_gradient,
    update_is_gradient,
)
from cemverify.conformance.questions.black_boxes import Question


@states(
    "extremes/layer/huge-lagrangian",
    claim="At states 1024 times as large, the Lagrangian is a number, and the state map its gradient.",
    formula="g(x) = dL/dx at 1024 x",
    why="A log-sum-exp without its maximum subtracted is infinite there, while the map beside it is right.",
    premise="the gradient is not zero",
    needs={"lagrangian"},
    source="g = dL/dx (Krotov & Hopfield, arXiv 2008.06996)",
    cases=Cases(texture="exploding-states"),
)
def lagrangian_holds_far_out(box: Box, q: Question) -> Evidence:
    values = box.lagrangians(q.x)
    evidence = map_is_the_lagrangians_gradient(box, q)
    return replace(evidence, telling=evidence.telling and bool(values.any()))


def properties() -> Iterator[Property]:
    """The update where state and memory are huge, zero or alike, and where one axis is long."""
    huge = Explanation(
        formula="x' - x = -eta P dE/dg at 256 x",
        why="Overflow inside the layer comes long before the state overflows.",
    )
    far = Explanation(
        formula="x' - x = -eta P dE/dg with 256 m",
        why="What is clipped or normalised beyond some length shows only where a memory is that long.",
    )
    # differences of the energy are too wide if both are huge: a softmax changes within them
    further = {"huge-memory": {"memory"}, "huge": {"memory", "autograd"}}
    for texture, title, explanation in (
        ("huge-states", "At states 256 times as large (64 in float32),", huge),
        ("huge-memory", "With a memory 256 times as large (64 in float32),", far),
        ("huge", "At states and with a memory 256 times as large (64 in float32),", huge),
        ("zero-states", "At a state of zeros,", AT_ZERO),
        ("ties", "If tokens and memories are equal,", AT_TIES),
    ):
        yield energy_layer_property(
            f"extremes/layer/{texture}",
            claim=f"{title} the update is -eta P times the gradient of the stated energy.",
            **explanation,
            check=update_is_gradient,
            premise="the gradient is not zero",
            needs=GRADIENT_STEP | further.get(texture, set()),
            cases=Cases(texture=texture),
            floor=0.05,
        )
    yield energy_layer_property(
        "extremes/layer/long-rows",
        claim="Where one axis is long, up to 257, the update is -eta P times the gradient of the stated energy.",
        formula="x' - x = -eta P dE/dg, with up to 257 tokens, patterns, rows: one axis at a time",
        why="Tiles, tables and windows of 32, 64 or 128 are right as long as nothing reaches their end.",
        check=update_is_gradient,
        premise="the gradient is not zero",
        needs=GRADIENT_STEP,
        cases=Cases(few=True, long=1, plain=True),
    )
