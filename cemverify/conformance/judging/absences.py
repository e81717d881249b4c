"""Features that are declared absent: a question or two for each, whether it is there all the same.

Of an option one call is compared with the right answer. What is no option is asked by properties, two cases each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from cemverify.cem.layers import PreconditionerConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import kind_of
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Fault, NotAnArray, NotFinite, WrongShape
from cemverify.conformance.implementations.features import DECLARED, FEATURES
from cemverify.conformance.judging.engine import not_offered
from cemverify.conformance.judging.first_call import HEAD_DIM, ordinary
from cemverify.conformance.judging.search import PropertySearch
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties import Offer, select
from cemverify.processes.time_limits import CoreBudget

RIGHT, IGNORED, ABSENT = OUTCOMES = "right", "ignored", "absent"

_CASES = 2  # of each property
# What asks for a feature that is no option. Some are left out: functions and "energy" are not there to be asked,
# "cuda" needs a device, "compile" seconds to import the compiler, and a few calls in "threads" prove no safety.
_PROPERTIES: Mapping[str, Sequence[str]] = {
    "validation": ["rejection"],
    "gradients": ["training/*/any-options", "training/layer/states", "training/layer/derivatives-agree"],
    "vmap": ["modes/*/vmap"],
    "dtype:float32": ["precision/*/float32"],
    "dtype:bfloat16": ["precision/*/bfloat16"],
    "causality": ["structure/layer/causality"],
    "autograd": ["gradient/layer/derivatives-agree"],
    "inference": ["modes/layer/surroundings"],
}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "start": {},
    "steps": {"steps": 3},
    "step-size": {"step_size": 0.3},
    "temperature": {"temperature": 1.7},
    "head-dim": {"head_dim": HEAD_DIM + 1, "temperature": math.sqrt(HEAD_DIM + 1)},
}
_GROUPS = ("diagonal", "position", "preconditioner", "norm", "activation")
_OF_STEPS = ("steps", "step-size", "preconditioner", "norm")  # which an energy does not know


def asked_for(absent: Mapping[str, str]) -> list[str]:
    """The features that are declared absent and can be asked for."""
    known = (*_PROPERTIES, *_OPTIONS, *_GROUPS)
    return [f for f in FEATURES if absent.get(f) == DECLARED and {f, f.partition(":")[0]} & {*known}]


def outcome(caller: Caller, feature: str) -> str | None:
    """What comes of asking for a feature that is declared absent, one of OUTCOMES.

    A wrong answer to an option is told apart, as whoever sets it is not told that it does nothing. Of any other
    feature it is what the declaration says.

    Returns:
        None if no question applies.
    """
    if feature in _PROPERTIES:
        return _of_properties(caller, feature)
    if isinstance(caller.subject, EnergyLayer):
        return None
    found = {o for f in EVERY if f.name in caller.functions and (o := _of_option(caller, f, feature)) is not None}
    return next((each for each in (IGNORED, ABSENT, RIGHT) if each in found), None)


def _of_properties(caller: Caller, feature: str) -> str | None:
    absent = {name: reason for name, reason in caller.subject.not_offered.items() if name != feature}
    caller = replace(caller, subject=replace(caller.subject, not_offered=absent))
    offer = Offer(frozenset(absent), caller.subject if isinstance(caller.subject, EnergyLayer) else None, caller.kind)
    told = 0
    for p in select(_PROPERTIES[feature]):
        if p.kind != kind_of(caller.subject) or not_offered(p, absent, caller.dtype) is not None:
            continue
        search = PropertySearch(caller.at(p.dtype or caller.dtype), p, CoreBudget(math.inf))
        for seed in range(_CASES):
            search.look_at(p.questions.scattered(offer, seed))
        if search.tally.violation is not None:
            return ABSENT
        told += search.tally.telling
    return RIGHT if told else None


def _of_option(caller: Caller, function: Function, feature: str) -> str | None:
    group, absent = feature.partition(":")[0], caller.subject.not_offered.keys() - {feature}
    if function.is_energy and group in _OF_STEPS:
        return None
    case = ordinary(function, absent, lambda config: _having(config, feature))
    none = function.starts_at_the_memory if feature == "start" else case.config == ordinary(function, absent).config
    if none:
        return None
    case = function.question(case, caller.dtype)
    try:
        answer = function.evidence("", caller.answer(function.name, case), case, caller.dtype)
    except (NotFinite, NotAnArray, WrongShape):
        return IGNORED
    except Fault:
        return ABSENT
    return RIGHT if answer.worst.margin <= 1 else IGNORED


def _having(config: Any, feature: str) -> Any:
    """The configuration with the feature, or itself if it has no such option."""
    if isinstance(config, BlockConfig):
        return replace(config, attention=_having(config.attention, feature), mlp=_having(config.mlp, feature))
    group, _, value = feature.partition(":")
    options = _OPTIONS.get(group, {group: value})
    if group == "preconditioner":
        kind: Any = value if value != "per-head" else "diagonal"
        options = {group: PreconditionerConfig(kind, per_head=kind != value)}
    if value == "per-head" and not hasattr(config, "heads"):
        return config
    return replace(config, **options) if options.keys() <= {f.name for f in fields(config)} else config


def named(features: Collection[str]) -> str:
    """The features in one line, a group that is there as a whole by its name."""
    groups = {f: f.partition(":")[0] for f in FEATURES}
    whole = {group for group in groups.values() if {f for f in groups if groups[f] == group} <= {*features}}
    return ", ".join(dict.fromkeys(groups[f] if groups[f] in whole else f for f in features))
