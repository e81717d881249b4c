"""Correct implementations that are written differently from the reference are never called wrong."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cemverify import check_implementation
from cemverify.conformance.implementations.contract import load
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.power.bank import BANK, CorrectImplementation, unavailable
from cemverify.power.matrix import offered
from suites.blind.rounds import rounds
from suites.kit.source import ROOT

# A costly implementation is tested by only a few.
COSTLY = {
    "examples.compiled_reference:mine": ["gradient/attention/norm-scalar", "gradient/mlp/silu"],
    "examples.energies_jax:mine": ["gradient/attention/plain", "gradient/mlp/tanh", "precision/mlp/bfloat16"],
    "examples.energy_layers.hopfield_jax:mine": ["gradient/layer/energy", "structure/layer/own-state"],
}

# By default one property in thirty-six, starting at a different one for each implementation; in a thorough run, all.
SHARE = 36
# Python loops over thousands of numbers, or compiles: by default these properties are left to other implementations.
TOO_SLOW = {
    ("examples.loops_numpy:mine", "sizes/attention/tokens-float32"),
    ("cemverify:fast", "modes/mlp/compiled"),
}
# `test_catalogue` already tests every property on the reference, with more examples, and `test_energy_layers` tests
# the energy layers.
ASKED_ELSEWHERE = ("cemverify:reference", "examples.energy_layers.")


def in_turn(entry: CorrectImplementation) -> object:
    """A test's parameter: an implementation of the bank."""
    marks = [pytest.mark.thorough] if entry.name.startswith(ASKED_ELSEWHERE) else []
    return pytest.param(entry, marks=marks, id=entry.name)


@pytest.mark.slow
@pytest.mark.parametrize("thorough", [False, pytest.param(True, marks=pytest.mark.thorough)], ids=["in-turn", "all"])
@pytest.mark.parametrize("entry", [in_turn(entry) for entry in BANK])
def test_a_correct_implementation_is_never_called_wrong(entry: CorrectImplementation, thorough: bool) -> None:
    if (reason := unavailable(entry)) is not None:
        pytest.skip(reason)
    if thorough:  # as in `cemverify check`, in processes that record which lines run
        records = check_implementation(entry.name, properties=COSTLY.get(entry.name, ()), seed=1)
    else:
        subject, turn = load(entry.name), BANK.index(entry) % SHARE
        ids = [p.id for p in offered(subject)][turn::SHARE]
        properties = COSTLY.get(entry.name) or [id_ for id_ in ids if (entry.name, id_) not in TOO_SLOW]
        records = check_implementation(subject, properties=properties, examples=6, seed=1)
    assert_right(records)


@pytest.mark.thorough
@pytest.mark.parametrize("name", sorted({name for of in rounds() for name in of.bases if of.bases[name] != "jax"}))
def test_a_correct_layer_that_others_wrote_is_never_called_wrong(name: str) -> None:
    assert_right(check_implementation(f"suites.blind.faults:{name}"))


def assert_right(records: Sequence[Record]) -> None:
    wrong = (Verdict.VIOLATED, Verdict.SUITE_ERROR)
    assert [(r.id, r.reason) for r in records if r.verdict in wrong] == []
    assert any(r.verdict == Verdict.HOLDS for r in records)


@pytest.mark.parametrize(
    ("property_", "examples", "seed", "name"),
    [
        # a product that is always zero: its two parts cancel, and each is a sum over rows that nearly cancels
        ("training/mlp/preconditioner-every-magnitude", 60, 17, "cemverify:reference"),
        # softplus(d) underflows, and its root has no derivative there
        ("training/attention/preconditioner-every-magnitude", 6, 17, "cemverify:reference"),
        ("training/mlp/preconditioner-every-magnitude", 6, 4, "cemverify:reference"),
        # a product with respect to a weight is a sum over 4,124 rows
        ("training/mlp/any-options", 6, 13, "cemverify:reference"),
        # relu^2 passes the largest float within seventeen steps, and Python raises
        ("contract/block/settings-unchanged", 6, 10, "examples.loops_numpy:mine"),
    ],
)
def test_what_was_a_false_alarm_is_none_any_more(property_: str, examples: int, seed: int, name: str) -> None:
    (record,) = check_implementation(load(name), properties=[property_], examples=examples, seed=seed)
    assert record.verdict == Verdict.HOLDS, record.reason


def test_what_cannot_be_asked_here_says_why() -> None:
    for missing, why in (
        (("examples.no_such:mine", ""), "examples.no_such is not installed; it is part of a clone of the repository"),
        (("no_such.examples:mine", ""), "not installed"),
        (("cemverify:reference", "", "no_such"), "it needs no_such: pip install 'cemverify[no_such]'"),
    ):
        assert why in str(unavailable(CorrectImplementation(*missing)))


def test_the_bank_holds_every_example() -> None:
    folder = ROOT / "examples"
    files = [path for path in folder.glob("**/[!_]*.py") if not path.stem.startswith("test_")]
    files = [path for path in files if path.parent.name != "trained_models"]  # `build`s, judged by `test_trained`
    examples = {f"{'.'.join(path.relative_to(folder.parent).with_suffix('').parts)}:mine" for path in files}
    assert examples == {entry.name for entry in BANK if entry.name.startswith("examples.")}
