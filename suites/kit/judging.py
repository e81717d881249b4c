"""Judges implementations: by one property in this process, in a run with worker processes; mutants by name."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch

from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.search import PropertySearch
from cemverify.conformance.judging.verdicts import Record
from cemverify.conformance.properties import Property, by_id, select
from cemverify.conformance.properties.base import Offer
from cemverify.conformance.workers.isolation import run
from cemverify.power.mutants import Mutant, mutants
from cemverify.processes.time_limits import CoreBudget

ONE_OF_EACH = select(["gradient/attention/plain", "gradient/mlp/silu"])
# imports take long on a busy machine, so only implementations that should hang get a short timeout
QUICKLY = Effort(examples=4, shrink=False, memory=700)


def judged(implementation: Any, id_: str, **effort: Any) -> Record:
    """The record of one property, tested in this process; `effort` has arguments of `Effort`."""
    return judge_property(implementation, by_id(id_), Effort(**effort))


def searched(implementation: Any, property_: Property, drawn: int = 6) -> PropertySearch:
    """A search among a few scattered questions only, up to the first violation."""
    caller = Caller(implementation, property_.dtype or torch.float64)
    layer = implementation if isinstance(implementation, EnergyLayer) else None
    offer = Offer(frozenset(implementation.not_offered), layer, caller.kind)
    search = PropertySearch(caller, property_, CoreBudget(math.inf))
    for seed in range(drawn):
        question = property_.questions.scattered(offer, seed)
        if question is None or search.tally.violation is not None:
            break
        search.look_at(question)
    return search


def finished(events: Iterable[object]) -> RunFinished:
    """The last event of a run, which has all its records."""
    *_, last = events
    assert isinstance(last, RunFinished)
    return last


def records(name: str, effort: Effort = QUICKLY, properties: Iterable[Property] = ONE_OF_EACH) -> dict[str, Record]:
    """The records of an implementation that worker processes load by name, by property id."""
    return {record.id: record for record in finished(run(name, tuple(properties), effort)).records}


def mutant(id_: str) -> Mutant:
    """The mutant with this id."""
    (found,) = (mutant for mutant in mutants() if mutant.id == id_)
    return found
