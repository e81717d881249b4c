"""A claim, where it is made, and the verdict that follows from its arguments."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Literal

from cemverify.claims.arguments import Argument, Condition, Finding, Predicate, Statement

Kind = Literal["paper", "slip", "ours", "training"]
Wording = Literal["sentence", "words", "formula", "report"]

DRAFT = 'OpenReview draft, "Recasting Transformer Layers as Energy Models"'
ARXIV = "arXiv 2605.07588v1"


class ClaimVerdict(StrEnum):
    """The result of the arguments for and against a claim."""

    HOLDS = "holds"
    CONDITIONAL = "holds under condition"
    REFUTED = "refuted"
    UNDECIDED = "undecided"
    UNTELLABLE = "cannot be told"
    AGREES = "agrees"
    DISAGREES = "disagrees"
    INCONCLUSIVE = "inconclusive"
    DEPENDS = "depends on the scale"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Attribution:
    """Where a statement is made."""

    version: str  # of the paper, or "" for a statement of ours
    section: str  # equation, section, appendix or table there
    quote: str = ""  # the text there, verbatim; "" if it is known only from a report
    # the whole sentence, some of its words, a transcribed formula, or a report of its content
    wording: Wording = "report"
    # "paper", a statement of the paper; "slip", an obvious slip, where it contradicts itself or its source; "ours", a
    # lemma that it does not state; "training", a report of its experiments
    kind: Kind = "paper"

    @property
    def where(self) -> str:
        """Where the quote is, in one line."""
        return ", ".join(filter(None, (self.version, self.section))) or "ours"


def draft(section: str, quote: str = "", wording: Wording | None = None) -> Attribution:
    """An attribution to the anonymous draft; by default a quote consists of some words of a sentence."""
    return Attribution(DRAFT, section, quote, wording or ("words" if quote else "report"))


def slip(section: str, quote: str = "", wording: Wording | None = None) -> Attribution:
    """As `draft`, for an obvious slip, where it contradicts itself or its source."""
    return replace(draft(section, quote, wording), kind="slip")


def arxiv(section: str, quote: str = "") -> Attribution:
    """An attribution to the arXiv version, of which we have the abstract, and a report of the rest."""
    return Attribution(ARXIV, section, quote, "sentence" if quote else "report")


def ours(on: str = "") -> Attribution:
    """An attribution to ourselves: the paper does not say it; `on` names the subject."""
    return Attribution("", f"on {on}" if on else "", kind="ours")


@dataclass(frozen=True)
class Claim:
    """One statement, where it is made, and the arguments for and against it."""

    id: str  # section of docs/mathematics.md and a few words, such as "4-any-step"
    source: Attribution  # where it is made, and by whom
    statement: str  # in our own words
    formula: str  # the same as a formula
    finding: str  # what is true, and why
    advice: str  # the consequence for an implementation
    holds_for: Predicate | None = field(default=None, repr=False)  # the statement as a predicate of a case
    arguments: Sequence[Argument] = ()  # those that test it
    condition: str = ""  # under which it holds; "" if it needs none. `within` says whether a case meets it
    within: Condition | None = field(default=None, repr=False)
    study: str = ""  # the command that measures a claim about training
    # why a lemma of ours is here, that is, what rests on it: "finding 4" of docs/explanation/findings.md, the id of a
    # property, or the dotted name of code
    rests: Sequence[str] = ()

    @property
    def kind(self) -> Kind:
        """What kind of statement it is."""
        return self.source.kind


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with the findings of its arguments."""

    claim: Claim
    findings: Sequence[Finding]

    @property
    def verdict(self) -> ClaimVerdict:
        """Computed from the findings alone."""
        if self.claim.kind != "training":
            return _verdict(self.findings)
        if not self.findings:
            return ClaimVerdict.NOT_MEASURED
        verdicts = set(self.at.values())
        return verdicts.pop() if len(verdicts) == 1 else ClaimVerdict.DEPENDS

    @property
    def at(self) -> dict[str, ClaimVerdict]:
        """For a claim about training: the verdict at each scale at which it was measured."""
        scales = dict.fromkeys(f.scale for f in self.findings if f.scale)
        return {scale: _training_verdict([f for f in self.findings if f.scale == scale]) for scale in scales}

    @property
    def conclusion(self) -> str:
        """The verdict in words, with the scales at which a training was measured."""
        if not self.at:
            return str(self.verdict)
        return "; ".join(f"{verdict} at {scale}" for scale, verdict in self.at.items())

    def describe(self) -> dict[str, Any]:
        """The claim with its verdict and arguments, as JSON."""
        claim, about_finding = self.claim, ("kind", "side", "general", "within", "summary")
        return {
            "id": claim.id,
            "kind": claim.kind,
            **{name: getattr(claim.source, name) for name in ("version", "section", "quote")},
            "known": claim.source.wording if claim.source.version else "ours",
            "statement": claim.statement,
            "formula": claim.formula,
            "verdict": str(self.verdict),
            "told": self.conclusion,
            **{name: getattr(claim, name) for name in ("condition", "finding", "advice", "study")},
            "rests": list(claim.rests),
            "arguments": [
                {**{name: getattr(f, name) for name in about_finding}, "lines": list(f.lines)} for f in self.findings
            ],
        }


def judge_claim(claim: Claim) -> JudgedClaim:
    """Evaluates a claim's arguments."""
    statement = Statement(claim.holds_for or _nothing, claim.within)
    return JudgedClaim(claim, [argument.gather(statement) for argument in claim.arguments])


def _nothing(_: Any) -> Any:
    raise ValueError("this claim has no predicate that a case could be put to")


def _verdict(findings: Sequence[Finding]) -> ClaimVerdict:
    """A false case within the condition refutes the statement, whatever supports it."""
    if all(f.side == "finding" for f in findings):  # no case was tested
        return ClaimVerdict.UNTELLABLE
    against = [f for f in findings if f.side == "against"]
    if any(f.within for f in against):
        return ClaimVerdict.REFUTED
    if any(f.side == "neither" for f in findings):
        return ClaimVerdict.UNDECIDED
    if not any(f.side == "for" and f.general and f.within for f in findings):
        return ClaimVerdict.UNDECIDED
    return ClaimVerdict.CONDITIONAL if against else ClaimVerdict.HOLDS


def _training_verdict(findings: Sequence[Finding]) -> ClaimVerdict:
    """One contrary comparison is enough to disagree; to agree, all must."""
    sides = {f.side for f in findings}
    if "against" in sides:
        return ClaimVerdict.DISAGREES
    return ClaimVerdict.AGREES if sides == {"for"} else ClaimVerdict.INCONCLUSIVE
