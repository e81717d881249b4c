"""What an implementation's process sends instead of answers never holds, and is never the verifier's fault."""

from __future__ import annotations

import pytest
import torch

from cemverify.conformance.asking.experiments import Rows, check
from cemverify.conformance.implementations.faults import Discard, Fault, NotFinite, Tampered, WrongShape
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.oracle.evidence import Comparison, Evidence
from cemverify.conformance.properties import Property, select
from cemverify.conformance.workers.giving_up import IN_A_ROW
from suites.kit.judging import records

FORGERS = "suites.conformance.forgers"
# a property for each experiment that returns arrays
OF_CEM = select(
    [
        *("gradient/attention/plain", "training/attention/plain", "training/mlp-energy/any-options"),
        *("contract/mlp/inputs-unchanged", "contract/mlp/threads", "contract/mlp/edited-arrays"),
        *("contract/mlp/windows", "contract/mlp/shared-memory", "contract/mlp/one-array"),
        *("contract/mlp/surroundings", "modes/mlp/vmap"),
    ]
)
OF_LAYERS = select(
    [
        *("gradient/layer/energy", "gradient/layer/derivatives-agree", "gradient/layer/conservative-field"),
        *("structure/layer/energy-per-token", "structure/layer/inputs-unchanged", "structure/layer/edited-arrays"),
        *("structure/layer/windows", "modes/layer/no-gradients", "modes/layer/surroundings", "modes/layer/vmap"),
        *("training/layer/parameters", "training/layer/states"),
        *("training/layer/derivatives-agree", "training/layer/parameters-matter"),
    ]
)
# a parameter may leave its range, so what is no answer there is none of a question outside the premise
MAY_BE_OUTSIDE = {"training/layer/parameters-matter"}


def batched(properties: tuple[Property, ...]) -> list[tuple[Property, ...]]:
    """As many as may cost a worker each before an implementation is given up."""
    return [properties[i : i + IN_A_ROW] for i in range(0, len(properties), IN_A_ROW)]


# of every kind of fault one, and none of one: the tests of `check` and of the wire ask others
WAYS = [("cem", "as_they_are"), ("cem", "names"), ("cem", "nan"), ("layer", "size_zero"), ("layer", "numbers")]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "way"), WAYS)
def test_what_a_process_forges_is_a_violation_and_never_holds_and_what_it_does_not_holds(kind: str, way: str) -> None:
    batches = batched(OF_CEM if kind == "cem" else OF_LAYERS)
    for record in (r for some in batches for r in records(f"{FORGERS}:{kind}_{way}", properties=some).values()):
        wrong = (Verdict.VIOLATED, *([Verdict.INCONCLUSIVE] if record.id in MAY_BE_OUTSIDE else []))
        assert record.verdict in wrong if way != "as_they_are" else record.verdict == Verdict.HOLDS, record


def test_gradients_of_size_zero_pass_no_property_of_training() -> None:
    by_id = records(f"{FORGERS}:cem_swaps_code", properties=select(["training"]))
    assert {record.verdict for record in by_id.values()} == {Verdict.VIOLATED}
    assert {record.cause for record in by_id.values()} == {"wrong shape"}


ONE = torch.ones(1, dtype=torch.float64)


def test_nothing_cannot_be_compared_nor_can_shapes_that_differ() -> None:
    for shape in ((0,), (0, 1, 1), (3, 0)):
        with pytest.raises(Discard, match="nothing to compare"):
            Comparison("", torch.zeros(shape), torch.zeros(shape), torch.zeros(()))
    for got, expected in (((0,), (2,)), ((), (2,)), ((1,), (2,)), ((1, 2), (2,)), ((2, 1), (2, 2))):
        with pytest.raises(WrongShape):
            Comparison("", torch.zeros(got), torch.zeros(expected), torch.zeros(()))
    with pytest.raises(Discard, match="nothing to compare"):
        Evidence([])
    with pytest.raises(ValueError, match="below zero"):
        Comparison("", ONE, ONE, -ONE)
    with pytest.raises(ValueError, match="a budget of shape"):
        Comparison("", ONE, ONE, torch.zeros(2))
    assert not Comparison("", torch.nan * ONE, ONE, ONE).margin <= 1


@pytest.mark.parametrize(
    ("value", "expected", "fault"),
    [
        (torch.zeros(0), torch.Size((2,)), WrongShape),
        (torch.zeros(()), Rows(1), WrongShape),
        (torch.zeros(3, 4), Rows(2), WrongShape),
        ({"a": ONE}, {"a": torch.Size((2,))}, WrongShape),
        ({"a": ONE}, {"b": torch.Size((1,))}, Tampered),
        ({}, {"b": torch.Size((1,))}, Tampered),
        ((ONE,), [torch.Size((1,))] * 2, Tampered),
        ((torch.inf * ONE,), [torch.Size((1,))], NotFinite),
    ],
)
def test_an_answer_has_the_names_shapes_and_finite_numbers_that_are_due(
    value: object, expected: object, fault: type[Fault]
) -> None:
    with pytest.raises(fault):
        check(value, expected)
