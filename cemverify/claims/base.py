"""A claim of the paper, and the verdict that its evidence amounts to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from cemverify.claims.evidence import Evidence, Finding


class Standing(StrEnum):
    """What is true of a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds under condition"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    NOT_MEASURED = "not measured at this scale"


@dataclass(frozen=True)
class Claim:
    """One statement, and what speaks for and against it.

    Attributes:
        id: section of docs/mathematics.md and a few words, as "4-concave".
        source: equation, section, appendix or table of the paper; "ours" for what the paper does not say.
        statement: in our own words. formula: the same as a formula.
        condition: under which it holds, or what it lacks; "" if it needs none.
        proof: a sketch, or why it fails.
        evidence: evaluated by `judge`. A claim with none is one about training that no study here measures.
        study: the command that measures a claim about training, if it is one.
    """

    id: str
    source: str
    statement: str
    formula: str
    proof: str
    evidence: Sequence[Evidence] = ()
    condition: str = ""
    study: str = ""


@dataclass(frozen=True)
class Judged:
    """A claim with its evidence gathered."""

    claim: Claim
    findings: Sequence[Finding]

    @property
    def verdict(self) -> Standing:
        """Computed from the findings alone; evidence that does not stand decides nothing."""
        if not self.findings:
            return Standing.NOT_MEASURED
        if not all(f.stands for f in self.findings):
            return Standing.UNDECIDED
        sides = {f.side for f in self.findings}
        if sides == {"for", "against"}:
            return Standing.CONDITIONAL
        return Standing.HOLDS if sides == {"for"} else Standing.REFUTED

    def describe(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.claim.id,
            "source": self.claim.source,
            "statement": self.claim.statement,
            "formula": self.claim.formula,
            "verdict": str(self.verdict),
            "condition": self.claim.condition,
            "proof": self.claim.proof,
            "study": self.claim.study,
            "evidence": [
                {"side": f.side, "stands": f.stands, "summary": f.summary, "lines": list(f.lines)}
                for f in self.findings
            ],
        }


def judge(claim: Claim) -> Judged:
    """Gathers a claim's evidence."""
    return Judged(claim, [evidence.gather() for evidence in claim.evidence])
