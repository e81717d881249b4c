"""Which properties apply to an implementation, and for which it lacks features."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch

from cemverify.conformance.implementations.contract import Kind
from cemverify.conformance.implementations.features import FUNCTIONS
from cemverify.conformance.judging.conclusion import unanswered
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.properties import Property


def applicable(kind: Kind, properties: Sequence[Property]) -> list[Property]:
    """The properties that apply to this kind of implementation.

    Raises:
        ValueError: none of them does.
    """
    chosen = [p for p in properties if p.kind == kind]
    if not chosen:
        raise ValueError(
            f"none of these properties applies to this kind of implementation ({kind}); see `cemverify list`"
        )
    return chosen


def not_offered(property_: Property, absent: Mapping[str, str], dtype: torch.dtype) -> Record | None:
    """The record of a property that needs an absent feature, or None if nothing is missing.

    Args:
        absent: the features that the implementation declares absent, with reasons.
        dtype: of the run; a dtype is a feature too.
    """
    # not checked when an implementation is declared: CUDA cannot be used in forks of a process that has looked for it
    if "cuda" in property_.needs - absent.keys() and not torch.cuda.is_available():
        absent = {**absent, "cuda": "torch sees no CUDA device on this machine"}
    asked_in = str(property_.dtype or dtype).removeprefix("torch.")
    missing = sorted((property_.needs | {f"dtype:{asked_in}"}) & absent.keys())
    if missing:
        reason = _missing(missing, absent)
    elif (group := property_.questions.emptied(absent)) is not None:
        reason = f"{group}: none is offered"
    else:
        return None
    return replace(unanswered(property_), verdict=Verdict.NOT_OFFERED, reason=reason)


def _missing(features: Sequence[str], absent: Mapping[str, str]) -> str:
    """A missing function explains everything else; otherwise all missing features are named."""
    functions = [name for name in features if name in FUNCTIONS]
    return "; ".join(f"{name}: {absent[name]}" for name in functions or features)
