"""The claims of `cemverify check --checkpoint`, about a trained layer on the states that its model feeds it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cemverify.conformance.properties.base import FIRST
from cemverify.conformance.properties.explanations import Explanation


@dataclass(frozen=True)
class TrainedClaim:
    """One claim about a trained layer."""

    id: str  # trained/claim
    claim: str  # one sentence; "{dtype}" stands for the dtype of the layer's weights
    explanation: Explanation  # the claim as a formula, and why it matters
    needs: frozenset[str]  # features needed to measure it, "{dtype}" as in the claim
    source: str = "x' = x - eta P dE/dg, on the states that the model feeds the layer"  # where the claim comes from
    since: str = FIRST  # the version of the catalogue that introduced it


CLAIMS: Sequence[TrainedClaim] = (
    TrainedClaim(
        "trained/update",
        "On real states, the update is -eta P dE/dg.",
        Explanation(
            formula="x' = x - eta P dE/dg on real states", why="Trained weights reach where no random ones do."
        ),
        frozenset({"energy", "gradient-step"}),
    ),
    TrainedClaim(
        "trained/slope",
        "To first order, every energy falls.",
        Explanation(formula="dE/dx . (x' - x) < 0 on real states", why="The share of tokens whose energy falls."),
        frozenset({"energy", "slope"}),
    ),
    TrainedClaim(
        "trained/whole-step",
        "No whole step raises an energy.",
        Explanation(formula="E(x') <= E(x) on real states", why="Trained step sizes may be too long."),
        frozenset({"energy", "monotone"}),
    ),
    TrainedClaim(
        "trained/preconditioner",
        "P is positive definite.",
        Explanation(formula="P > 0", why="Training may push P out of the cone where it descends."),
        frozenset({"P"}),
    ),
    TrainedClaim(
        "trained/symmetry",
        "The update is a gradient field.",
        Explanation(formula="J = J^T on real states", why="A field that has drifted has no energy."),
        frozenset({"conservative", "differences"}),
    ),
    TrainedClaim(
        "trained/precision",
        "In {dtype}, the update is as close to the float64 one as the dtype allows.",
        Explanation(formula="F in the model's dtype ~ F in float64", why="What rounding costs on real states."),
        frozenset({"other dtype", "dtype:{dtype}"}),
    ),
)
