"""The catalogue from somebody else's code: `check_implementation(obj)`, and two lines in their tests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from cemverify.conformance import engine, isolation
from cemverify.conformance.contract import LoadError, Subject, as_subject, load
from cemverify.conformance.engine import Effort, RunFinished, applicable, judge_property, not_offered
from cemverify.conformance.listeners.terminal import violation
from cemverify.conformance.properties import Property, select
from cemverify.conformance.verdicts import Record, Verdict


def check_implementation(
    found: Any,
    *,
    properties: Sequence[str] = (),
    examples: int = 60,
    seed: int = 0,
    device: str = "cpu",
    timeout: float = 20.0,
) -> list[Record]:
    """Judges an implementation and returns one record per property, in catalogue order.

    Args:
        found: an implementation or anything with its functions as attributes, judged in this process; or a
            "module:attribute" name, judged in processes of its own, where it may hang or crash.
        properties: ids, prefixes or patterns; all if none.
        examples, seed, device: as of `cemverify check`.
        timeout: seconds that a call may take before it counts as hung; for a name only.

    Raises:
        LoadError: it is no implementation, or cannot be loaded.
        ValueError: a pattern that matches nothing, or no examples.
    """
    effort = Effort(examples, seed, timeout=timeout, device=device)
    if isinstance(found, str):
        events = isolation.run(found, select(properties), effort, workers=isolation.cores())
    else:
        events = engine.run(as_subject(found), type(found).__name__, select(properties), effort)
    for event in events:
        if isinstance(event, RunFinished):
            return list(event.records)
    raise AssertionError("a run ends with RunFinished")


def parametrize_with_properties(
    found: Any, *, properties: Sequence[str] = (), examples: int = 60, seed: int = 0, device: str = "cpu"
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Makes a pytest function one test per property:

        @parametrize_with_properties(my_implementation)
        def test_cem(check): check()

    A violation fails with the smallest counterexample, so does a property that could not be judged; a feature
    declared absent skips with its reason.

    Args:
        found: as for `check_implementation`, a name included; judged in the process of the test.
        properties, examples, seed, device: as of `cemverify check`.
    """
    import pytest

    try:
        subject = load(found) if isinstance(found, str) else as_subject(found)
    except LoadError as error:
        raise LoadError(str(error)) from None
    effort = Effort(examples, seed, device=device)
    chosen = applicable(subject, select(properties))
    checks = [pytest.param(Check(subject, p, effort), id=p.id) for p in chosen]
    return pytest.mark.parametrize("check", checks)


class Check:
    """One property of one implementation, to be called inside a pytest function."""

    def __init__(self, subject: Subject, property_: Property, effort: Effort) -> None:
        self.subject = subject
        self.property = property_
        self.effort = effort

    def __repr__(self) -> str:
        return f"Check({self.property.id!r})"

    def __call__(self) -> Record:
        """Judges; returns the record of a property that holds, and fails or skips the test otherwise."""
        import pytest

        absent = not_offered(self.property, self.subject.not_offered, self.effort.dtype)
        if absent is not None:
            pytest.skip(f"not offered: {absent.reason}")
        record = judge_property(self.subject, self.property, self.effort)
        if record.verdict == Verdict.VIOLATED:
            pytest.fail(violation(record), pytrace=False)
        if record.verdict != Verdict.HOLDS:
            pytest.fail(f"{record.verdict}: {record.id}: {record.reason}", pytrace=False)
        return record
