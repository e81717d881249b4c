"""When a run passes: a plain sentence for whatever speaks against it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from synthetic.side_by_side.model_results import ModelResult


def reasons_to_fail(results: Sequence[ModelResult], bigram: float, band: float, floor: Tensor | None) -> list[str]:
    """One sentence for each thing that is wrong; [] is a pass.

    Every loss is finite; every model needs fewer bits per token than a bigram model, and not fewer than mathematics
    allows; energies fall for every token where they must; and every model keeps within the band of the baseline.

    Args:
        bigram: bits per token of a bigram model on the same validation windows.
        floor: the least bits per token there can be on each of them, (W,); None of most corpora.
        band: how many times the bits of the best baseline a model may need.
    """
    reasons = []
    for result in results:
        name, training = result.contender.name, result.training
        if training.diverged_at is not None:
            at = f", first in {training.where}" if training.where else ""
            reasons.append(f"{name} diverged at step {training.diverged_at}: a value is not finite{at}")
        elif result.bits is None:
            reasons.append(f"{name} diverged at its last step: its validation loss is not finite")
        else:
            reasons += _reasons_of_one(result, result.bits, bigram, floor)
    for result in results:
        best = _best_baseline(result, results)
        if result.bits is not None and best is not None and result.bits > band * best:
            reasons.append(
                f"{result.contender.name} needs {result.bits:.3f} bits per token, more than {band:g} times the"
                f" {best:.3f} of the best baseline"
            )
    return reasons


def _best_baseline(result: ModelResult, results: Sequence[ModelResult]) -> float | None:
    """The fewest bits of a baseline with the positions of this model, or of any where there is no such one.

    How soon a model learns to look at its neighbours is a matter of its positions, which are not what is compared.
    """
    if result.contender.baseline:
        return None
    finished = [(e.contender.model.block.attention.position, e.bits) for e in results if e.contender.baseline]
    bits = [(position, b) for position, b in finished if b is not None]
    alike = [b for position, b in bits if position == result.contender.model.block.attention.position]
    return min(alike or [b for _, b in bits], default=None)


def _reasons_of_one(result: ModelResult, bits: float, bigram: float, floor: Tensor | None) -> list[str]:
    name = result.contender.name
    reasons = []
    if not bits < bigram:
        reasons.append(
            f"{name} needs {bits:.3f} bits per token, not fewer than the {bigram:.3f} of a bigram model; it may need"
            " more --steps"
        )
    if floor is not None and result.validation is not None:
        above = result.validation - floor  # (W,); on average over the source nobody is below, by chance one may be
        error = float(above.std(correction=1)) / math.sqrt(len(above)) if len(above) > 1 else 0.0
        if float(above.mean()) < -4 * error:
            reasons.append(
                f"{name} needs {bits:.3f} bits per token, fewer than the floor of {float(floor.mean()):.3f}:"
                " something leaks"
            )
    reasons += [
        f"{name}: the energy of the {layer.kind} in layer {layer.layer} rises where it must fall, for"
        f" {1 - layer.promised:.2%} of the tokens"
        for layer in result.probes
        if layer.promised is not None and layer.promised < 1
    ]
    return reasons
