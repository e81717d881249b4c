"""The claims ledger: what the paper states, and how much of it is true.

There is one file for each part of the paper. A claim is a statement with its attribution. The statement is a
predicate, and arguments for and against it evaluate that predicate on cases (`arguments`). No verdict is written
down: `base` computes it from what the arguments find.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from cemverify.claims import (
    accounting,
    algorithm_1,
    attention,
    elementwise,
    hopfield,
    positions,
    preconditioners,
    primitives,
    readings,
    recursion,
    roundoff,
    training,
)
from cemverify.claims.base import Claim, ClaimVerdict, JudgedClaim, judge_claim
from cemverify.claims.retired import RETIRED

_PARTS = (
    attention,
    elementwise,
    primitives,
    preconditioners,
    algorithm_1,
    positions,
    hopfield,
    recursion,
    accounting,
    roundoff,
)

# where a clone of the repository has the measurements of its studies; a wheel has none
PUBLISHED = Path(__file__).parents[2] / "docs" / "results"


@lru_cache(maxsize=1)
def mathematics() -> tuple[Claim, ...]:
    """Every claim but those about training, in the order of docs/mathematics.md."""
    claims = [claim for part in _PARTS for claim in part.claims()]
    return tuple(sorted(claims, key=lambda claim: int(claim.id.partition("-")[0])))


def ledger(results: Path | None = PUBLISHED) -> tuple[Claim, ...]:
    """Every claim.

    Args:
        results: the folder with the measurements of the studies, from which the verdicts on training are computed.
    """
    return (*mathematics(), *training.claims(readings.collect(results)))


def find_claim(id_: str, results: Path | None = PUBLISHED) -> Claim:
    """The claim with this id.

    Raises:
        ValueError: there is none; the message lists ids that begin alike, or all ids, or says where to read a retired
            one.
    """
    by_id = {claim.id: claim for claim in ledger(results)}
    if id_ in RETIRED:
        raise ValueError(f"the claim {id_!r} is retired: it is judged no more; read {RETIRED[id_]}")
    if id_ not in by_id:
        alike = [name for name in by_id if name.startswith(id_[:2])] or list(by_id)
        raise ValueError(f"no claim {id_!r}; there are: {', '.join(alike)}")
    return by_id[id_]


__all__ = ["PUBLISHED", "Claim", "ClaimVerdict", "JudgedClaim", "find_claim", "judge_claim", "ledger", "mathematics"]
