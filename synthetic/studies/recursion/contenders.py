"""The models that the recursion study compares, each with a name, and what they cost.

Sizes are matched exactly: with D the width and M the hidden size of the CEM MLP,

    parameters   CEM 2DM, untied gated MLP 3DM'               equal at M' = 2M/3
    FLOPs        CEM (2 + 4T)DM, untied gated MLP 6DM'        equal at M' = (1 + 2T)M/3
    FLOPs        CEM at T = 1 with M, at T with M'            equal at M' = 3M/(1 + 2T)

The lift and the read-out, the same for all of one width, are not part of this matching.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache

import torch

from cemverify.console.errors import UsageError, one_of
from synthetic.flops import Flops, count
from synthetic.gp.tasks import Streams
from synthetic.studies.recursion.blocks import BlockSpec, BlockStack
from synthetic.studies.recursion.ensembles import Stack, squared_errors
from synthetic.studies.recursion.own import OwnSpec, OwnStack, specs
from synthetic.studies.recursion.regressors import CEMSpec, DrawnSpec, GatedMLPSpec, RegressorStack, Spec

INPUTS = 10
# 2 x 3 x 17, so that the sizes matched to it come out whole
CEM = CEMSpec(width=32, hidden=102)
MLP = GatedMLPSpec(width=32, hidden=102)
BLOCK = BlockSpec()


@dataclass(frozen=True)
class Contender:
    """A model that takes part in the study, under the name of its family and its depth."""

    family: str  # what it is called without its depth; models of one family are compared with its smallest T
    spec: Spec | OwnSpec | BlockSpec  # the model
    # which first weights and batches; models of one draw share them, and the second is for A/A comparisons
    draw: int = 0

    @property
    def depth(self) -> int | None:
        """T: how many descent steps, applications of an untied MLP, or layers; None of an own model without T."""
        return self.spec.depth

    @property
    def name(self) -> str:
        """The name in the tables, "CEM, T = 2": family and depth."""
        return self.family if self.depth is None else f"{self.family}, T = {self.depth}"


@dataclass(frozen=True)
class RegressorCost:
    """What a regressor costs in parameters and FLOPs."""

    parameters: int  # their number
    inference: Flops  # FLOPs of one prediction
    training: Flops  # of one point of a training step


@dataclass(frozen=True)
class Family:
    """Models that differ in their depth, or in what is matched to a depth."""

    about: str  # one line for `--help`
    contenders: Callable[[Sequence[int]], list[Contender]]  # the models at the recursion depths T of a study


def _each(about: str, name: str, model: CEMSpec | GatedMLPSpec) -> Family:
    """One model at every T, which is its number of steps, or of its applications."""
    if isinstance(model, CEMSpec):
        return Family(about, lambda depths: [Contender(name, replace(model, steps=T)) for T in depths])
    return Family(about, lambda depths: [Contender(name, replace(model, reuse=T)) for T in depths])


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


def _again(depths: Sequence[int]) -> list[Contender]:
    return [Contender("A/A: CEM, other weights", replace(CEM, steps=min(depths)), draw=1)]


FAMILIES: Mapping[str, Family] = {
    "cem": _each("the recursive CEM MLP as it is: no norm inside, P = I, a step size of 1", "CEM", CEM),
    "unlifted": _each(
        "the same without a lift: the state has the inputs' dimension, the hidden size is three times as large",
        "CEM, D = inputs",
        replace(CEM, width=INPUTS, hidden=306),
    ),
    "normed": _each("RMSNorm inside the recursion, with one gain", "CEM, norm inside", replace(CEM, norm="scalar")),
    "diagonal": _each(
        "a learned diagonal preconditioner", "CEM, diagonal P", replace(CEM, preconditioner="diagonal")
    ),
    "low-rank": _each(
        "a learned diagonal-plus-low-rank preconditioner, positive definite by construction",
        "CEM, low-rank P",
        replace(CEM, preconditioner="low-rank"),
    ),
    "low-rank-printed": _each(
        "the same as the paper prints it, which need not be positive definite",
        "CEM, printed low-rank P",
        replace(CEM, preconditioner="low-rank-printed"),
    ),
    "learned-step": _each(
        "a learned step size that starts at 1", "CEM, learned step", replace(CEM, step_size="learned")
    ),
    "normed-learned-step": _each(
        "RMSNorm inside, and a learned step size that starts at 1",
        "CEM, norm inside, learned step",
        replace(CEM, norm="scalar", step_size="learned"),
    ),
    "shared-step": _each(
        "a step size of 1/T: however many the steps, they sum to 1",
        "CEM, steps sum to 1",
        replace(CEM, step_size="1/T"),
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
        "MLP reused",
        MLP,
    ),
    "layers": Family(
        "T layers of CEM one after the other, each with weights of its own and one step: what T steps do without",
        lambda depths: [Contender("CEM, T layers", replace(CEM, layers=T)) for T in depths],
    ),
    "untied-layers": Family(
        "T untied gated MLPs one after the other, each with weights of its own",
        lambda depths: [Contender("MLP, T layers", replace(MLP, layers=T)) for T in depths],
    ),
    "narrow": Family("CEM at the largest T, narrowed until it costs as many FLOPs as the wide one at T = 1", _narrow),
    "again": Family(
        "the smallest T once more with other weights and batches: an A/A row, which shows what noise looks like",
        _again,
    ),
}


# Of functions that are learned from the points before.
OF_SEQUENCES: Mapping[str, Family] = {
    "block": Family(
        "a block of CEM attention and a CEM MLP, T steps of 1/T on a fixed memory",
        lambda depths: [Contender("CEM", replace(BLOCK, steps=T)) for T in depths],
    ),
    "block-refreshed": Family(
        "the same, each step with its memory read anew",
        lambda depths: [
            Contender("CEM, refreshed memory", replace(BLOCK, steps=T, memory="refreshed")) for T in depths
        ],
    ),
    "block-layers": Family(
        "T such blocks, each with weights of its own and one step",
        lambda depths: [Contender("CEM, T layers", replace(BLOCK, layers=T)) for T in depths],
    ),
    "llama-layers": Family(
        "T of Llama's blocks",
        lambda depths: [Contender("Llama, T layers", replace(BLOCK, layers=T, layers_of="Llama")) for T in depths],
    ),
    "block-again": Family(
        "the smallest T of CEM once more with other weights and batches",
        lambda depths: [Contender("A/A: CEM, other weights", replace(BLOCK, steps=min(depths)), draw=1)],
    ),
}


def family(name: str, *, of_sequences: bool = False) -> Family:
    """The family of that name, or the one that a module of the user's makes."""
    if of_sequences:
        return one_of("model family of functions from context", name, OF_SEQUENCES)
    if ":" not in name:
        return one_of("model family", name, FAMILIES, ", or name your own as module:object")
    return Family("", lambda depths: [Contender(name, spec) for spec in specs(name, tuple(depths), INPUTS)])


def stack(spec: Spec | OwnSpec | BlockSpec, inputs: int, streams: Sequence[Streams], draw: str = "") -> Stack:
    """The models of a kind, one for each replicate; the arguments as of `RegressorStack`."""
    if isinstance(spec, OwnSpec):
        return OwnStack(spec, inputs, streams)
    if isinstance(spec, BlockSpec):
        return BlockStack(spec, inputs, streams, draw)
    return RegressorStack(spec, inputs, streams, draw)


@cache
def cost_of(spec: Spec | OwnSpec | BlockSpec, inputs: int = INPUTS, sequence: int = 0) -> RegressorCost:
    """Parameters and FLOPs of a regressor, counted on the meta device; a user's code may not know that device.

    Args:
        sequence: J, of a model of sequences of points.
    """
    device = "cpu" if isinstance(spec, OwnSpec) else "meta"
    # a batch: what a training step does once for all of them is shared out
    x = torch.ones(1, 128, *((sequence, inputs + 1) if sequence else (inputs,)), device=device)
    y = torch.ones(x.shape[:-1], device=device)
    points = y.numel()
    model = stack(spec, x.shape[-1], [Streams(0, "", 0)]).to(device)

    def training_step() -> None:
        squared_errors(model, x, y).sum().backward()  # type: ignore[no-untyped-call]

    with torch.no_grad():
        inference = count(model, x)
    parameters = sum(p.numel() for p in model.parameters())
    each = (Flops(total.matmul // points, total.elementwise // points) for total in (inference, count(training_step)))
    return RegressorCost(parameters, *each)


def _whole(numerator: int, denominator: int) -> int:
    if numerator % denominator:
        raise UsageError(
            f"no hidden size matches exactly at this T ({numerator}/{denominator} is not whole);"
            " with 8 as the largest T one does"
        )
    return numerator // denominator
