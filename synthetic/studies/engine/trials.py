"""One training of a study, as a cell of the store: short for tuning, or at full length for judging."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from cemverify.runs import algorithm
from cemverify.runs.plain import digest, plain
from synthetic.corpora.choice import PinnedCorpus, corpora_folder
from synthetic.corpora.tokens import Batches, Tokens, spread_windows
from synthetic.studies.engine.designs import Design, cost, parameters
from synthetic.studies.engine.stopping import AtStop
from synthetic.training.looped import drawn_depth, paired, turn
from synthetic.training.machine import Machine
from synthetic.training.recipe import Recipe
from synthetic.training.steps import Steps, steps_of, steps_taken
from synthetic.training.training import Saving, TrainingStep, score, train

Part = Literal["tuning", "judging", "whole"]
# A training of at least this many steps is worth checkpoints.
LONG = 2000
CHECKPOINTS = 10
# Scores are kept as means over this many groups of neighbouring windows: enough to see how much windows differ.
GROUPS = 32
PIECES = 20  # of the training loss that are kept
PROBED_TOKENS = 1024


@dataclass(frozen=True)
class TrialCell:
    """A model trained with one seed and one recipe."""

    corpus: PinnedCorpus  # on which it is trained
    design: Design  # the model
    recipe: Recipe  # how it is trained
    seed: int  # of the batches
    weights: int  # of the first weights
    part: Part  # which half of the validation part is scored, or all of it
    windows: int  # how many are scored
    device: str = "cpu"  # "cpu" or "cuda"
    compiled: bool = field(default=False, metadata={"added": True})  # whether it is trained through torch.compile
    # numbers of steps with which the trained model is also scored, beside those of its design
    depths: tuple[int, ...] = field(default=(), metadata={"added": True})
    # least falls (`Descent.least_fall`) with which it is also scored; at most the last of `depths` steps are taken
    stops: tuple[float, ...] = field(default=(), metadata={"added": True})
    # steps between two scores during training; 0: scored only at the end
    every: int = field(default=0, metadata={"added": True})
    # the name of the plan that judges it, if that is registered; "" otherwise
    plan: str = field(default="", metadata={"added": True})


@dataclass(frozen=True)
class TrialRecord:
    """The result of a training."""

    parameters: int  # of the model
    # forward, training: FLOPs per token
    forward: float
    training: float
    groups: tuple[float, ...]  # bits per byte of groups of windows, all of equal size; () if it diverged
    trained: tuple[float, ...]  # training bits per token, means over twentieths of the steps taken
    # diverged_at, where: the step at which a value was not finite, and its layer
    diverged_at: int | None
    where: str | None
    # start, end: the steps inside the layers before and after training; end is () if it diverged
    start: tuple[Steps, ...]
    end: tuple[Steps, ...]
    batches: str  # a fingerprint of the batches it was trained on
    # bits per byte with each of the cell's depths; None where not finite
    at_depths: tuple[float | None, ...] = ()
    # bits per byte with each of the cell's stops, and the mean steps of a token in a CEM layer
    at_stops: tuple[AtStop, ...] = ()
    # (steps done, bits per byte) of the finite scores during training
    along: tuple[tuple[int, float], ...] = ()

    @property
    def bits(self) -> float | None:
        """Bits per byte after the last step; None if it diverged."""
        return math.fsum(self.groups) / len(self.groups) if self.groups else None


@algorithm("synthetic.language.tuned.cells:compute_trial", corpora=2, models=1, training=1, scoring=1, steps=1)
def compute_trial(cell: TrialCell) -> dict[str, Any]:
    """Trains a model and scores it on its share of the validation part, at the end or also during training."""
    folder = corpora_folder()
    corpus = cell.corpus.open(folder)
    machine = Machine(cell.device, compiled=cell.compiled)
    recipe, design = cell.recipe, cell.design
    model = paired(design.looped, cell.weights).to(cell.device)
    batches = Batches(corpus.train.tokens, cell.seed, recipe.batch, recipe.context)
    windows = part_windows(corpus.validation.tokens, cell.part, cell.windows, recipe.context)
    few = windows[:: max(1, len(windows) * recipe.context // PROBED_TOKENS), :-1].to(cell.device)
    start = steps_of(model, few)
    path = folder / "checkpoints" / f"{digest(plain(cell))[:24]}.safetensors"
    every = cell.every or math.ceil(recipe.steps / CHECKPOINTS)
    along: list[tuple[int, float | None]] = []
    saving = Saving(path, every, {"cell": plain(cell)}, resume=True, notes=along) if recipe.steps > LONG else None

    def prepare(step: int) -> None:
        if design.dial:
            T = drawn_depth(design.steps, cell.seed, step)
            turn(model, T, design.step_size_at(T))

    def bits_with(steps: int, least_fall: float = 0.0) -> Tensor:
        if design.dial or cell.depths:
            turn(model, steps, design.step_size_at(steps), least_fall)
        return score(model, windows, recipe, machine) * corpus.validation.tokens_per_byte  # (W,)

    def at_stop(least_fall: float) -> AtStop:
        bits = _mean(bits_with(cell.depths[-1], least_fall))
        return AtStop(least_fall, short([steps_taken(model, few)])[0], bits)

    def observe(step: TrainingStep) -> None:
        if cell.every and (step.step % cell.every == 0 or step.step == recipe.steps):
            along.append((step.step, _mean(bits_with(design.steps))))

    training = train(model, recipe, batches, machine, saving=saving, prepare=prepare, observe=observe)
    diverged_at, groups, end = training.diverged_at, (), ()
    at_depths: tuple[float | None, ...] = ()
    at_stops: tuple[AtStop, ...] = ()
    if diverged_at is None:
        bits = torch.stack([bits_with(T) for T in design.depths]).mean(0)  # (W,)
        if bool(bits.isfinite().all()):
            groups, end = grouped(bits), steps_of(model, few)  # type: ignore[assignment]
            at_depths = tuple(_mean(bits_with(T)) for T in cell.depths)
            at_stops = tuple(map(at_stop, cell.stops))
        else:
            diverged_at = recipe.steps
    flops = cost(design, recipe.context)
    path.unlink(missing_ok=True)
    record = asdict(
        TrialRecord(
            parameters(design),
            flops.forward,
            flops.training,
            groups,
            pieces(training.bits),
            diverged_at,
            training.where,
            start,
            end,
            training.batches,
            at_depths,
            at_stops,
            tuple((step, bits) for step, bits in along if bits is not None),
        )
    )
    asked_for: dict[str, object] = {"at_depths": cell.depths, "at_stops": cell.stops, "along": cell.every}
    return {name: value for name, value in record.items() if asked_for.get(name, True)}


def part_windows(tokens: Tokens, part: Part, count: int, context: int) -> Tensor:
    """Evenly spaced windows of half of the tokens, or of all: at most `count`, without overlap, (W, J+1) of int64."""
    half = len(tokens) // 2
    stretches = {"tuning": range(half), "judging": range(half, 2 * half), "whole": range(len(tokens))}
    return spread_windows(tokens, count, context, stretches[part])


def grouped(bits: Tensor) -> tuple[float, ...]:
    """Means over groups of neighbouring windows (W,), of equal size; windows that do not fill a group are dropped."""
    size = max(1, len(bits) // GROUPS)
    whole = bits[: len(bits) // size * size]
    return short(whole.reshape(-1, size).mean(1).tolist())


def pieces(bits: Sequence[float]) -> tuple[float, ...]:
    """Means over twentieths of the steps; with fewer than 20 steps, the steps themselves."""
    if not bits:
        return ()
    parts = torch.tensor(bits, dtype=torch.float64).tensor_split(min(PIECES, len(bits)))
    return short([float(part.mean()) for part in parts])


def short(values: Sequence[float]) -> tuple[float, ...]:
    """Drops the digits that float32 does not have, so that cells stay small."""
    return tuple(float(f"{value:.9g}") for value in values)


def _mean(bits: Tensor) -> float | None:
    """The mean over windows; None if it is not finite."""
    mean = float(bits.mean())
    return short([mean])[0] if math.isfinite(mean) else None
