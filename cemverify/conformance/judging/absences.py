"""Features that are declared absent: a few questions for each, to see whether it is there after all.

For an option, one call is compared with the right answer. Other features are tested by properties, two examples each.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import fields, replace
from typing import Any

from cemverify.cem.layers import PreconditionerConfig
from cemverify.cem.models import BlockConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.asking.experiments import LayerProcess
from cemverify.conformance.implementations.contract import Subject, kind_of
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.faults import Fault, NotAnArray, NotFinite, WrongShape
from cemverify.conformance.implementations.features import FEATURES
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.first_call import HEAD_DIM, ordinary
from cemverify.conformance.judging.offered import not_offered
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.oracle.functions import EVERY, Function
from cemverify.conformance.properties import select

RIGHT, IGNORED, ABSENT = "right", "ignored", "absent"  # the possible outcomes

# The properties that test a feature that is no option. Some are left out: missing functions and "energy" cannot be
# called, "cuda" needs a device, "compile" seconds to import the compiler; a few calls in "threads" prove no safety.
_PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "validation": ("rejection",),
    "gradients": ("training/*/any-options", "training/layer/states", "training/layer/derivatives-agree"),
    "vmap": ("modes/*/vmap",),
    "dtype:float32": ("precision/*/float32",),
    "dtype:bfloat16": ("precision/*/bfloat16",),
    "causality": ("structure/layer/causality",),
    "autograd": ("gradient/layer/derivatives-agree",),
    "inference": ("modes/layer/surroundings",),
    "narrow-state": ("structure/layer/dtype",),
}
_GROUPS = {feature: feature.partition(":")[0] for feature in FEATURES}
_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "start": {},
    "steps": {"steps": 3},
    "step-size": {"step_size": 0.3},
    "temperature": {"temperature": 1.7},
    "head-dim": {"head_dim": HEAD_DIM + 1, "temperature": math.sqrt(HEAD_DIM + 1)},
    **{f: {g: f.partition(":")[2]} for f, g in _GROUPS.items() if f != g and g not in ("preconditioner", "dtype")},
    "preconditioner:diagonal": {"preconditioner": PreconditionerConfig("diagonal")},
    "preconditioner:low-rank": {"preconditioner": PreconditionerConfig("low-rank")},
    "preconditioner:low-rank-printed": {"preconditioner": PreconditionerConfig("low-rank-printed")},
    "preconditioner:per-head": {"preconditioner": PreconditionerConfig("diagonal", per_head=True)},
}


def asked_for(absent: Mapping[str, str]) -> list[str]:
    """The features that are declared absent and can be asked for."""
    return [f for f in FEATURES if absent.get(f) == "declared" and f in {*_PROPERTIES, *_OPTIONS}]


def outcome(subject: Subject, feature: str, effort: Effort, layer_process: LayerProcess | None = None) -> str | None:
    """The outcome of using a feature that is declared absent: RIGHT, IGNORED, ABSENT, or None if it shows nothing.

    A wrong answer to an option is IGNORED, because a user who sets it is not told that it does nothing. A wrong
    answer to any other feature is what the declaration says.
    """
    absent = {name: reason for name, reason in subject.not_offered.items() if name != feature}
    if feature in _OPTIONS:
        caller = Caller(subject, effort.dtype, effort.device, layer_process)
        functions = () if isinstance(subject, EnergyLayer) else subject.functions
        # no energy, which has no steps
        found = {_of_option(caller, f, feature, absent) for f in EVERY if f.name in functions and not f.is_energy}
        return next((each for each in (IGNORED, ABSENT, RIGHT) if each in found), None)
    subject, effort = replace(subject, not_offered=absent), replace(effort, examples=2, shrink=False)
    verdicts = {
        judge_property(subject, p, effort, layer_process).verdict
        for p in select(_PROPERTIES[feature])
        if p.kind == kind_of(subject) and not_offered(p, absent, effort.dtype) is None
    }
    return ABSENT if Verdict.VIOLATED in verdicts else RIGHT if verdicts == {Verdict.HOLDS} else None


def _of_option(caller: Caller, function: Function, feature: str, absent: Collection[str]) -> str | None:
    case = ordinary(function, absent, lambda config: _having(config, feature))
    if function.starts_at_the_memory if feature == "start" else case.config == ordinary(function, absent).config:
        return None  # it has no such option
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
    options, of_heads = _OPTIONS[feature], feature == "preconditioner:per-head" and not hasattr(config, "heads")
    return replace(config, **options) if {*options} <= {f.name for f in fields(config)} and not of_heads else config


def named(features: Collection[str]) -> list[str]:
    """The features, with the name of a group in place of all its members."""
    parts = {group for feature, group in _GROUPS.items() if feature not in features}
    return list(dict.fromkeys(f if _GROUPS[f] in parts else _GROUPS[f] for f in features))
