"""The models that the recursion study compares, by name, and their costs.

Sizes are matched exactly. With D the width and M the hidden size of the CEM MLP:

    parameters   CEM 2DM, untied gated MLP 3DM'               equal at M' = 2M/3
    FLOPs        CEM (2 + 4T)DM, untied gated MLP 6DM'        equal at M' = (1 + 2T)M/3
    FLOPs        CEM at T = 1 with M, at T with M'            equal at M' = 3M/(1 + 2T)

The lift and the read-out, which are the same for all models of one width, are not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch

from cemverify.console.errors import UsageError, one_of
from synthetic.flops import Flops, count
from synthetic.gp.tasks import Streams
from synthetic.studies.recursion.blocks import BlockSpec, BlockStack
from synthetic.studies.recursion.ensembles import Stack, squared_errors
from synthetic.studies.recursion.own import OwnSpec, OwnStack, specs
from synthetic.studies.recursion.regressors import CEMSpec, DrawnSpec, GatedMLPSpec, RegressorStack, Spec

INPUTS = 10
# 102 = 2 x 3 x 17, so that the sizes matched to it are integers
CEM = CEMSpec(width=32, hidden=102)
MLP = GatedMLPSpec(width=32, hidden=102)
BLOCK = BlockSpec()


@dataclass(frozen=True)
class Contender:
    """A model in the study, named by its family and its depth."""

    family: str  # its name without its depth; the models of a family are compared with the one with the smallest T
    spec: Spec | OwnSpec | BlockSpec  # the model
    # which initial weights and batches: models with the same draw share them; the second is for A/A comparisons
    draw: int = 0

    @property
    def depth(self) -> int | None:
        """T: the number of descent steps, uses of an untied MLP, or layers; None for a user's model without T."""
        return self.spec.depth

    @property
    def name(self) -> str:
        """The name in the tables, "CEM, T = 2": family and depth."""
        return self.family if self.depth is None else f"{self.family}, T = {self.depth}"


@dataclass(frozen=True)
class RegressorCost:
    """The cost of a regressor in parameters and FLOPs."""

    parameters: int  # their number
    inference: Flops  # FLOPs of one prediction
    training: Flops  # FLOPs of a training step per point


@dataclass(frozen=True)
class Family:
    """Models that differ in their depth, or in a size that is matched to a depth."""

    about: str  # one line for `--help`
    contenders: Callable[[Sequence[int]], list[Contender]]  # the models at the recursion depths T of a study


def _each(about: str, name: str, model: Any, T: str = "steps", **options: Any) -> Family:
    """One model with these options at every T; the parameter `T` names the field of the model that holds T."""
    return Family(
        about, lambda depths: [Contender(name, replace(model, **options, **{T: depth})) for depth in depths]
    )


def _again(about: str, model: Any) -> Family:
    """A model at the smallest T with different weights and batches."""
    name = "A/A: CEM, other weights"
    return Family(about, lambda depths: [Contender(name, replace(model, steps=min(depths)), draw=1)])


def _drawn(depths: Sequence[int]) -> list[Contender]:
    spec = DrawnSpec(CEM.width, CEM.hidden, max(depths))
    summed = replace(spec, step_size="1/T")
    return [
        Contender("T drawn", spec),
        Contender("T drawn, norm inside", replace(spec, norm="scalar")),
        Contender("T drawn, steps sum to 1", summed),
        Contender("T drawn, steps sum to 1, norm inside", replace(summed, norm="scalar")),
        Contender("T drawn, steps sum to 1, positive definite P", replace(summed, preconditioner="low-rank")),
    ]


def _untied(depths: Sequence[int]) -> list[Contender]:
    M = CEM.hidden
    of_flops = {T: _whole((1 + 2 * T) * M, 3) for T in depths if T > 1}
    return [
        Contender("MLP, same dimensions", MLP),
        Contender("MLP, same parameters", replace(MLP, hidden=_whole(2 * M, 3))),
        *(Contender(f"MLP, FLOPs of CEM at T = {T}", replace(MLP, hidden=m)) for T, m in of_flops.items()),
    ]


def _narrow(depths: Sequence[int]) -> list[Contender]:
    T = max(depths)
    return [Contender("CEM, FLOPs of T = 1", replace(CEM, hidden=_whole(3 * CEM.hidden, 1 + 2 * T), steps=T))]


FAMILIES: Mapping[str, Family] = {
    "cem": _each("the recursive CEM MLP as it is: no norm inside, P = I, a step size of 1", "CEM", CEM),
    "unlifted": _each(
        "cem without a lift: the state has the inputs' dimension, and the hidden size is three times as large",
        "CEM, D = inputs",
        replace(CEM, width=INPUTS, hidden=306),
    ),
    "normed": _each("RMSNorm inside the recursion, with one gain", "CEM, norm inside", CEM, norm="scalar"),
    "diagonal": _each("a learned diagonal preconditioner", "CEM, diagonal P", CEM, preconditioner="diagonal"),
    "low-rank": _each(
        "a learned diagonal-plus-low-rank preconditioner, positive definite by construction",
        *("CEM, low-rank P", CEM),
        preconditioner="low-rank",
    ),
    "low-rank-printed": _each(
        "low-rank as the paper prints it, which need not be positive definite",
        *("CEM, printed low-rank P", CEM),
        preconditioner="low-rank-printed",
    ),
    "learned-step": _each("a learned step size that starts at 1", "CEM, learned step", CEM, step_size="learned"),
    "normed-learned-step": _each(
        "RMSNorm inside, and a learned step size that starts at 1",
        "CEM, norm inside, learned step",
        replace(CEM, norm="scalar", step_size="learned"),
    ),
    "shared-step": _each(
        "a step size of 1/T: however many the steps, they sum to 1", "CEM, steps sum to 1", CEM, step_size="1/T"
    ),
    "normed-shared-step": _each(
        "RMSNorm inside, and a step size of 1/T",
        "CEM, norm inside, steps sum to 1",
        replace(CEM, norm="scalar", step_size="1/T"),
    ),
    "drawn": Family("one model for all depths: T is drawn for each batch, in five variants", _drawn),
    "untied": Family(
        "the untied gated MLP: of the same dimensions, of as many parameters, of as many FLOPs as CEM at each T",
        _untied,
    ),
    "reused": _each(
        "the untied gated MLP applied T times: recursion without a fixed memory and without an energy",
        *("MLP reused", MLP, "reuse"),
    ),
    "layers": _each(
        "T layers of CEM one after the other, each with its own weights and one step; T steps share their weights",
        *("CEM, T layers", CEM, "layers"),
    ),
    "untied-layers": _each(
        "T untied gated MLPs one after the other, each with its own weights", "MLP, T layers", MLP, "layers"
    ),
    "narrow": Family("CEM at the largest T, narrowed until it costs as many FLOPs as the wide one at T = 1", _narrow),
    "again": _again(
        "the smallest T again with other weights and batches: an A/A row, which shows what noise looks like", CEM
    ),
}


# For functions that are learned from their earlier points.
OF_SEQUENCES: Mapping[str, Family] = {
    "block": _each("a block of CEM attention and a CEM MLP, T steps of 1/T on a fixed memory", "CEM", BLOCK),
    "block-refreshed": _each(
        "the same, but each step reads its memory anew", "CEM, refreshed memory", BLOCK, memory="refreshed"
    ),
    "block-layers": _each("T such blocks, each with its own weights and one step", "CEM, T layers", BLOCK, "layers"),
    "llama-layers": _each("T of Llama's blocks", "Llama, T layers", BLOCK, "layers", layers_of="Llama"),
    "block-again": _again("the smallest T of CEM once more with other weights and batches", BLOCK),
}


def family(name: str, *, of_sequences: bool = False) -> Family:
    """The family with this name, or the one that a user's module makes."""
    if of_sequences:
        return one_of("model family of functions from context", name, OF_SEQUENCES, "; it takes none of your own")
    if ":" not in name.strip(":"):
        return one_of("model family", name, FAMILIES, ", or name your own as module:object")
    return Family("", lambda depths: [Contender(name, spec) for spec in specs(name, tuple(depths), INPUTS)])


def stack(spec: Spec | OwnSpec | BlockSpec, inputs: int, streams: Sequence[Streams], draw: str = "") -> Stack:
    """The models of a kind, one for each replicate; arguments as for `RegressorStack`."""
    if isinstance(spec, OwnSpec):
        return OwnStack(spec, inputs, streams)
    if isinstance(spec, BlockSpec):
        return BlockStack(spec, inputs, streams, draw)
    return RegressorStack(spec, inputs, streams, draw)


@cache
def cost_of(spec: Spec | OwnSpec | BlockSpec, inputs: int = INPUTS, sequence: int = 0) -> RegressorCost:
    """Parameters and FLOPs of a regressor, counted on the meta device, or on the CPU for a user's own model.

    Args:
        sequence: J, for a model of sequences of points.
    """
    device = "cpu" if isinstance(spec, OwnSpec) else "meta"
    # a batch, so that work done once per training step is divided among its points
    x = torch.ones(1, 128, *((sequence, inputs + 1) if sequence else (inputs,)), device=device)
    y = torch.ones(x.shape[:-1], device=device)
    points = y.numel()
    model = stack(spec, x.shape[-1], [Streams(0, "", 0)]).to(device)
    with torch.no_grad():
        inference = count(model, x)
    training = count(lambda: squared_errors(model, x, y).sum().backward())  # type: ignore[no-untyped-call]
    parameters = sum(p.numel() for p in model.parameters())
    each = (Flops(total.matmul // points, total.elementwise // points) for total in (inference, training))
    return RegressorCost(parameters, *each)


def _whole(numerator: int, denominator: int) -> int:
    if numerator % denominator:
        raise UsageError(
            f"no hidden size matches exactly at this T ({numerator}/{denominator} is not whole);"
            " with 8 as the largest T one does"
        )
    return numerator // denominator
