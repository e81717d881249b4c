"""The claims ledger: what the paper states, and what is true of it.

One file for each part of the paper. No verdict is written down: `base.judge` computes it from the evidence.
"""

from __future__ import annotations

from functools import lru_cache

from cemverify.claims import (
    accounting,
    algorithm_1,
    attention,
    convexified,
    elementwise,
    hopfield,
    positions,
    preconditioners,
    primitives,
    recursion,
    roundoff,
    training,
)
from cemverify.claims.base import Claim, Judged, Standing, judge

_PARTS = (
    attention,
    elementwise,
    primitives,
    preconditioners,
    algorithm_1,
    positions,
    convexified,
    hopfield,
    recursion,
    accounting,
    roundoff,
    training,
)


@lru_cache(maxsize=1)
def ledger() -> tuple[Claim, ...]:
    """Every claim, in the order of docs/mathematics.md."""
    claims = [claim for part in _PARTS for claim in part.claims()]
    return tuple(sorted(claims, key=lambda claim: int(claim.id.partition("-")[0])))


def find_claim(id_: str) -> Claim:
    """The claim of that id.

    Raises:
        ValueError: there is none; the message lists those that begin alike, or all.
    """
    known = {claim.id: claim for claim in ledger()}
    if id_ not in known:
        alike = [name for name in known if name.startswith(id_[:2])] or list(known)
        raise ValueError(f"unknown claim {id_!r}; choose from {', '.join(alike)}")
    return known[id_]


__all__ = ["Claim", "Judged", "Standing", "find_claim", "judge", "ledger"]
