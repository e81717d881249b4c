"""What a property is: a claim, its source, the cases it is asked about, and how one case is judged."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from hypothesis.strategies import SearchStrategy

from cemverify.conformance.calls import Caller
from cemverify.conformance.cases import Source, Space, cases
from cemverify.conformance.evidence import Evidence

Door = Literal["cem", "energy layer"]


@dataclass(frozen=True)
class Property:
    """One claim about an implementation.

    Attributes:
        id: family/layer/claim. claim: one sentence. source: where the claim comes from.
        check: judges one question; raises `Fault` or `Discard`.
        questions: a strategy of questions, given the features that are absent and the dimension of a layer.
        needs: features without which it cannot be asked.
        door: which kind of implementation it is for.
        dtype: the dtype it is asked in, if not the run's.
        share: the share of the run's examples that it takes; costly properties take less.
    """

    id: str
    claim: str
    source: str
    check: Callable[[Caller, Any], Evidence] = field(repr=False)
    questions: Callable[[Source, Asked], SearchStrategy[Any]] = field(repr=False)
    needs: frozenset[str] = frozenset()
    door: Door = "cem"
    dtype: torch.dtype | None = None
    share: float = 1.0

    @property
    def family(self) -> str:
        """The part of the id before the first slash."""
        return self.id.partition("/")[0]


@dataclass(frozen=True)
class Asked:
    """What is known of the implementation that is asked.

    Attributes:
        absent: features it does not offer. dim: D, of an energy layer.
    """

    absent: frozenset[str] = frozenset()
    dim: int = 1


def over(space: Space) -> Callable[[Source, Asked], SearchStrategy[Any]]:
    """Cases of the space, or of the part of it that the implementation offers."""
    return lambda source, asked: cases(space.within(asked.absent), source)


def features(space: Space) -> frozenset[str]:
    """The features that every case of a space uses."""
    named: set[str] = {space.layer} if space.layer != "block" else {"block"}
    for group in ("diagonal", "position", "norm", "activation"):
        value = space.options.get(group, "none")
        if value != "none":
            named.add(f"{group}:{value}")
    if space.layer == "mlp" and "activation" not in space.options:
        named.add("activation:silu")
    if space.preconditioner.kind != "identity":
        named.add(f"preconditioner:{space.preconditioner.kind}")
    if space.preconditioner.per_head:
        named.add("preconditioner:per-head")
    if min(space.steps) > 1:
        named.add("steps")
    return frozenset(named)
