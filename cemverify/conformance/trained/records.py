"""A trained layer judged: one record for each claim that its declaration implies, and the numbers behind them."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from cemverify.cem.layers import CEMLayer
from cemverify.conformance.asking.boxes import Box, flat
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Discard, Fault, words
from cemverify.conformance.judging.conclusion import by_fault, sentence
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.localisation.layers import localise_layer
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.properties.layers.gradient import update_is_gradient
from cemverify.conformance.properties.layers.modes import low_precision_is_close
from cemverify.conformance.questions.black_boxes import Question
from cemverify.conformance.trained import measuring
from cemverify.conformance.trained.activations import TokenRows, catch
from cemverify.conformance.trained.claims import CLAIMS, TrainedClaim
from cemverify.conformance.trained.measuring import Moment, Share
from cemverify.conformance.trained.model import TrainedModel, energy_layer_of, part

Value = float | None


@dataclass(frozen=True)
class StepNumbers:
    """What one step does on all real states."""

    # slope, whole: shares of energies that fall and rise, to first order and over the whole step
    slope: Share | None = None
    whole: Share | None = None
    change: Value = None  # the mean change of an energy
    size: Value = None  # |update| / |state|
    margin: Value = None  # of update = -eta P dE/dg
    asymmetry: Value = None  # |J - J^T| / |J|. Each is None where it cannot be given


@dataclass(frozen=True)
class TrainedLayer:
    """A trained layer on real states, ready to be judged."""

    name: str  # the sub-module's
    module: nn.Module  # a copy in float64
    layer: EnergyLayer  # its declaration, in every dtype
    dtype: torch.dtype  # that of the weights as the model runs them
    iterations: int  # how often the model applies the declared step
    question: Question  # the state and memory that it gets
    tokens: TokenRows  # what the model read


@dataclass(frozen=True)
class TrainedFindings:
    """What was found about it."""

    trained: TrainedLayer
    finished: RunFinished  # the records, as after any other check
    steps: Sequence[StepNumbers]  # the numbers of each step
    smallest_eigenvalue: Value  # of P
    largest_logit: Value  # of attention, at the start
    precision: Value  # the margin in the dtype of the weights


def prepare(model: TrainedModel, name: str, tokens: TokenRows, device: str) -> TrainedLayer:
    """The layer of that name, with the state and memory that it gets while the model reads the tokens."""
    model.model.to(device)
    layer = part(model.model, name)
    dtype = next((p.dtype for p in layer.parameters() if p.is_floating_point()), torch.float32)
    wide = copy.deepcopy(layer).to(torch.float64)
    exact = energy_layer_of(wide, model.declare, name)
    own = energy_layer_of(layer, model.declare, name) if dtype != torch.float64 else exact
    question = catch(model.model, layer, name, own, model.inputs, tokens)
    iterations = layer.descent.steps if isinstance(layer, CEMLayer) else 1
    return TrainedLayer(name, wide, by_dtype(exact, {dtype: own}), dtype, iterations, question, tokens)


def by_dtype(exact: EnergyLayer, narrower: dict[torch.dtype, EnergyLayer]) -> EnergyLayer:
    """A layer that picks its functions by the dtype of its arguments, from the layers declared for each dtype."""

    def chosen(field_: str, *arguments: Any, **named: Any) -> Any:
        first = arguments[0]
        array: Tensor = first[0] if isinstance(first, tuple) else first
        return getattr(narrower.get(array.dtype, exact), field_)(*arguments, **named)

    names = [name for name in ("update", "energy", "state_map", "lagrangian") if getattr(exact, name) is not None]
    functions: dict[str, Any] = {name: partial(chosen, name) for name in names}
    return replace(exact, **functions)


def judge_trained(
    trained: TrainedLayer, implementation: str, device: str = "cpu", dtype: torch.dtype = torch.float64
) -> TrainedFindings:
    """Judges a trained layer: follows it step by step over the real states, and tests what its declaration implies.

    Args:
        implementation: its name in the result. dtype: for claims that do not have their own.
    """
    started = time.monotonic()
    box = Box.of(Caller(trained.layer, dtype, device))
    judging = Judging(box, trained)
    numbers = [judging.look(moment) for moment in judging.moments()]
    records = judging.records()
    finished = RunFinished(implementation, records, time.monotonic() - started)
    logit = measuring.largest_logit(trained.module, trained.question)
    precision = next((r.margin for r in records if r.id == "trained/precision"), None)
    return TrainedFindings(trained, finished, numbers, judging.smallest, logit, precision)


@dataclass
class Judging:
    """Evidence for each claim, collected over the steps."""

    box: Box
    trained: TrainedLayer
    evidences: dict[str, list[Evidence]] = field(default_factory=dict)
    failed: dict[str, Exception] = field(default_factory=dict)
    spent: dict[str, float] = field(default_factory=dict)
    smallest: Value = None

    def moments(self) -> Iterator[Moment]:
        """The steps, up to one that gives no answer."""
        q = self.box.rounded(self.trained.question)
        try:
            yield from measuring.steps(self.box, q, self.trained.iterations)
        except Exception as error:
            self.failed["trained/update"] = error

    def look(self, moment: Moment) -> StepNumbers:
        """Measures one step, and keeps the evidence."""
        stated = self.box.layer.energy is not None
        slope = self._measure_once("trained/slope", lambda: measuring.slopes(moment)) if stated else None
        whole = self._measure_once("trained/whole-step", lambda: measuring.whole_step(moment)) if stated else None
        field_ = None
        # if one call takes several steps, single ones cannot be asked for
        if self.box.caller.dtype == torch.float64 and len(self.box.layer.step.sizes) == 1:
            field_ = self._measure_once("trained/symmetry", lambda: measuring.asymmetry(moment))
        identity = {"energy", "gradient-step"} & self.box.layer.not_offered.keys()
        update = None
        if not identity:
            update = self._measure_once("trained/update", lambda: (update_is_gradient(self.box, moment.q),))
        if self.trained.dtype != torch.float64:
            narrow = self.box.at(self.trained.dtype)
            self._measure_once(
                "trained/precision", lambda: (low_precision_is_close(narrow, narrow.rounded(moment.q)),)
            )
        relative_size = float(flat(moment.u).norm() / flat(moment.q.x).norm().clamp(min=1e-300))
        return StepNumbers(
            None if slope is None else slope[0],
            None if whole is None else whole[0],
            None if whole is None else whole[2],
            relative_size,
            None if update is None else update[0].worst.margin,
            None if field_ is None else field_[0],
        )

    def _measure_once(self, id_: str, measure: Callable[[], tuple[Any, ...]]) -> tuple[Any, ...] | None:
        """The measurement, or None; its evidence, or why it failed, is kept for the record."""
        started = time.monotonic()
        try:
            measured = measure()
            self.evidences.setdefault(id_, []).extend(part for part in measured if isinstance(part, Evidence))
        except Exception as error:
            self.failed.setdefault(id_, error)
            measured = None
        self.spent[id_] = self.spent.get(id_, 0.0) + time.monotonic() - started
        return measured

    def records(self) -> list[Record]:
        """One record for each claim about the trained layer."""
        layer, dtype = self.box.layer, str(self.trained.dtype).removeprefix("torch.")
        absent = dict(layer.not_offered)
        with suppress(Fault, Discard):
            q = self.box.rounded(self.trained.question)
            self.smallest = measuring.smallest_eigenvalue(self.trained.module, self.box, q)
        if self.smallest is not None:
            lowest = torch.tensor([self.smallest], dtype=torch.float64)
            bound = torch.full_like(lowest, torch.finfo(torch.float64).tiny)
            name = "P's smallest eigenvalue > 0"
            self.evidences["trained/preconditioner"] = [
                Evidence.of(Comparison(name, -lowest, -bound, bound, "at most"))
            ]
        elif "gradient-step" not in absent:
            absent["P"] = "its preconditioner does not act on the last axis alone"
        if self.box.caller.dtype != torch.float64:
            absent["differences"] = "in a lower precision than float64, differences of the update are mostly roundoff"
        if self.trained.dtype == torch.float64:
            absent["other dtype"] = "the weights are float64 already"
        return [self._record(claim, dtype, absent) for claim in CLAIMS]

    def _record(self, claim: TrainedClaim, dtype: str, absent: dict[str, str]) -> Record:
        tokens, id_ = self.trained.tokens.ids.numel(), claim.id
        needs = {need.format(dtype=dtype) for need in claim.needs}
        record = Record(
            id_,
            claim.claim.format(dtype=dtype),
            claim.source,
            Verdict.HOLDS,
            seconds=self.spent.get(id_, 0.0),
            premise="something changes by more than roundoff",
        )
        if missing := sorted(needs & absent.keys()):
            reason = "; ".join(f"{name}: {absent[name]}" for name in missing)
            return replace(record, verdict=Verdict.NOT_OFFERED, reason=reason)
        if (error := self.failed.get(id_) or self.failed.get("trained/update")) is not None:
            return _failed(record, error)
        evidence = self.evidences.get(id_, [])
        worst = max(evidence, key=lambda e: e.worst.margin, default=None)
        record = replace(record, examples=tokens * len(evidence), telling=tokens * sum(e.telling for e in evidence))
        if worst is None or not record.telling:
            return replace(record, verdict=Verdict.INCONCLUSIVE, reason="nothing changed by more than roundoff")
        margin = worst.worst.margin
        if margin <= 1:
            return replace(record, margin=margin)
        part_ = None
        if id_ == "trained/update":
            with suppress(Exception):  # the findings stand regardless
                part_ = localise_layer(self.box.caller, self.trained.question)
        return replace(
            record,
            verdict=Verdict.VIOLATED,
            margin=margin,
            cause=worst.worst.claim,
            key=worst.worst.key,
            reason=sentence(worst),
            part=None if part_ is None else part_.name,
            because=None if part_ is None else part_.because,
        )


def _failed(record: Record, error: Exception) -> Record:
    if isinstance(error, Fault):
        return by_fault(record, error)
    if isinstance(error, Discard):
        return replace(record, verdict=Verdict.INCONCLUSIVE, reason=str(error))
    return replace(record, verdict=Verdict.SUITE_ERROR, reason=f"the suite itself failed: {words(error)}")
