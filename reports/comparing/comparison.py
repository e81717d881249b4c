"""Compares old results with new ones: finds the pairs, and the findings of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from reports.collect import ResultFile
from reports.comparing import figures, verdicts
from reports.comparing.findings import Content, Finding, Incomparable, note, regression

RULES: Mapping[str, Callable[[Content, Content], Iterator[Finding]]] = {
    "check": verdicts.of_checks,
    "power": verdicts.of_powers,
    "claims": verdicts.of_claims,
    "readings": figures.of_readings,
    "recursion": figures.of_readings,
    "benchmarks": figures.of_benchmarks,
}


@dataclass(frozen=True)
class Pair:
    """An old result and the new one that it is compared with."""

    name: str  # the subject of both results
    old: ResultFile
    new: ResultFile
    findings: Sequence[Finding]  # regressions first
    reason: str = ""  # why they cannot be compared; "" if they can


@dataclass(frozen=True)
class Comparison:
    """All pairs, and the results without a partner."""

    pairs: Sequence[Pair]
    missing: Sequence[Finding]  # regressions: old results without a new one
    added: Sequence[Finding]  # notes: new results without an old one

    @property
    def findings(self) -> list[Finding]:
        """The missing results, the findings of each pair, and the new results."""
        return [*self.missing, *(finding for pair in self.pairs for finding in pair.findings), *self.added]

    @property
    def reasons(self) -> list[str]:
        """Why some results cannot be compared."""
        sentences = [f"{pair.name}: {pair.reason}" for pair in self.pairs if pair.reason]
        if self.pairs:
            return sentences
        old, new = (", ".join(finding.what for finding in findings) for findings in (self.missing, self.added))
        return [f"the old are results of {old}, and the new of {new}: give results of the same"]

    @property
    def code(self) -> int:
        """The exit code: 2 if any pair cannot be compared, 1 if anything got worse, otherwise 0."""
        return 2 if self.reasons else int(any(finding.weight == "regression" for finding in self.findings))

    def describe(self) -> dict[str, Any]:
        """The comparison as JSON: exit code, reasons, findings, and the pairs with theirs."""
        return {
            "code": self.code,
            "not_comparable": self.reasons,
            "findings": [asdict(finding) for finding in self.findings],
            "pairs": [
                {
                    "name": pair.name,
                    "old": str(pair.old.path),
                    "new": str(pair.new.path),
                    "reason": pair.reason,
                    "findings": [asdict(finding) for finding in pair.findings],
                }
                for pair in self.pairs
            ],
        }


def compare(old: Sequence[ResultFile], new: Sequence[ResultFile]) -> Comparison:
    """Pairs results of the same kind and subject, and compares each pair.

    If each side is one file, the two are compared even if they are of different implementations.

    Raises:
        Incomparable: two results on one side have the same subject.
    """
    if len(old) == len(new) == 1 and old[0].content["kind"] == new[0].content["kind"]:
        return Comparison([_pair(old[0], new[0])], [], [])
    before, after = _by_subject(old), _by_subject(new)
    pairs = [_pair(result, after[key]) for key, result in before.items() if key in after]
    missing = [regression(_name(r), "there", "missing") for key, r in before.items() if key not in after]
    added = [note(_name(r), "none", "there", "a result that is new") for key, r in after.items() if key not in before]
    return Comparison(pairs, missing, added)


def _pair(old: ResultFile, new: ResultFile) -> Pair:
    names = dict.fromkeys((_name(old), _name(new)))
    name = " against ".join(names)
    try:
        rule = RULES.get(old.content["kind"])
        unruled = [note("figures", "there", "there", "no rule compares results of this kind")]
        findings = list(rule(old.content, new.content)) if rule else unruled
    except Incomparable as reason:
        return Pair(name, old, new, [], str(reason))
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        return Pair(name, old, new, [], f"a file lacks what its kind has ({error!r}); create it again")
    order = ("regression", "improvement", "note")
    return Pair(name, old, new, sorted(findings, key=lambda finding: order.index(finding.weight)))


def _by_subject(results: Sequence[ResultFile]) -> dict[tuple[str, ...], ResultFile]:
    by_subject: dict[tuple[str, ...], ResultFile] = {}
    for result in results:
        first = by_subject.setdefault(_subject(result.content), result)
        if first is not result:
            raise Incomparable(
                f"{first.path} and {result.path} are both results of {_name(result)}; compare them file by file"
            )
    return by_subject


def _subject(content: Content) -> tuple[str, ...]:
    kind = str(content["kind"])
    if kind in ("check", "counterexample"):
        extra = content["property"]["id"] if kind == "counterexample" else ""
        return kind, str(content["implementation"]), extra
    study = content.get("study", "")
    return kind, str(study.get("name") if isinstance(study, Mapping) else study), str(content.get("size", ""))


def _name(result: ResultFile) -> str:
    return " ".join(word for word in _subject(result.content) if word)
