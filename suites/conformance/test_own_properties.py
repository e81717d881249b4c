"""Properties that users state are judged like those of the catalogue, and never mistaken for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from inspect import getsource
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify import check_implementation, energy_layer, implementation, layer_property
from cemverify.catalogue.versions import is_newer
from cemverify.conformance.gate.known_violations import parse_known
from cemverify.conformance.implementations.energy_layers import EnergyLayer
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.implementations.reference import reference
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.run import run as run_here
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.listeners import files
from cemverify.conformance.properties import catalogue, own_properties
from cemverify.conformance.properties.own import OWN
from cemverify.conformance.questions.black_boxes import Question
from cemverify.results.provenance import Maker
from suites.kit.commands import Told
from suites.kit.examples import known
from suites.kit.judging import finished

QUICK = Effort(examples=12)


def update(x: Tensor, memory: Tensor) -> Tensor:
    return 0.5 * (torch.softmax(x @ memory.mT, -1) @ memory - x)


def energy(x: Tensor, memory: Tensor) -> Tensor:
    return -torch.logsumexp(x @ memory.mT, -1) + (x * x).sum(-1) / 2


def layer_of(step: Any) -> EnergyLayer:
    return energy_layer(update=step, energy=energy, dim=3, step_size=0.5, causal=False)


RIGHT, WRONG = layer_of(update), layer_of(lambda x, memory: update(x, memory.abs()))


def is_odd(layer: Any, question: Any) -> Any:
    """If all signs are flipped, the update flips its sign."""
    turned = replace(question, x={"x": -question.x["x"]}, memory={"memory": -question.memory["memory"]})
    return layer.update(turned), {"x": -layer.update(question)["x"]}, 2 * layer.roundoff(question)


def judged(layer: Any, function: Any = is_odd, effort: Effort = QUICK, **more: Any) -> Record:
    stated = layer_property(**{"claim": "It is odd.", "source": "our notes", "name": "tried", **more})(function)
    return judge_property(layer, stated.property, effort)


def test_a_right_layer_holds_and_a_wrong_one_has_a_small_counterexample() -> None:
    held = judged(RIGHT, mutants={"looks at magnitudes": WRONG})
    assert held.verdict == Verdict.HOLDS
    assert held.controls == {"mutant: looks at magnitudes": "failed"}
    assert held.telling > 2
    record = judged(WRONG)
    assert (record.verdict, record.cause) == (Verdict.VIOLATED, "It is odd")
    assert record.saved is not None
    smallest = (record.counterexample or {})["case"]["memory"][0]
    assert sum(abs(number) for token in smallest for number in token) == 1, "only one of its numbers is not zero"


def test_what_is_wrong_with_the_layer_is_named() -> None:
    twice = layer_of(lambda x, memory: 2 * update(x, memory))
    record = judged(twice, lambda layer, q: (layer.update(q), layer.right(q), layer.roundoff(q)))
    assert (record.part, "2 times what it must be" in str(record.because)) == ("a constant factor", True)


@pytest.mark.parametrize(
    ("mutants", "reason"),
    [
        ({"is right": RIGHT}, "its mutant 'is right' passes 4 examples"),
        ({"is broken": layer_of(lambda x, _: x.flatten())}, "its mutant 'is broken' gives no answer to compare"),
        ({"is small": energy_layer(update=update, dim=3, causal=False)}, "its mutant 'is small' is not asked"),
    ],
)
def test_a_property_whose_mutant_survives_is_not_green(mutants: Mapping[str, Any], reason: str) -> None:
    record = judged(RIGHT, needs=("energy",), mutants=mutants)
    assert record.verdict == Verdict.INCONCLUSIVE
    assert str(record.reason).startswith(reason)


def test_trivial_answers_have_to_fail_where_the_property_says_so() -> None:
    record = judged(RIGHT, controls=("zero",), function=lambda layer, q: (layer.update(q)["x"] * 0, 1.0, 2.0, True))
    assert record.verdict == Verdict.INCONCLUSIVE
    assert "trivial implementations pass too" in str(record.reason)


@pytest.mark.parametrize(("below", "verdict"), [(1.0, Verdict.HOLDS), (-1.0, Verdict.VIOLATED)])
def test_a_bound_is_a_property_too(below: float, verdict: Verdict) -> None:
    def bound(layer: Any, question: Any) -> Any:
        return layer.energy(question) - below, layer.energy(question), layer.roundoff_of_energy(question)

    assert judged(RIGHT, bound, at_most=True, needs=("energy",)).verdict == verdict


def test_what_a_property_is_not_about_is_discarded_and_a_run_that_tells_nothing_is_inconclusive() -> None:
    assert "says nothing" in str(judged(RIGHT, lambda *_: None, Effort(examples=3)).reason)
    record = judged(RIGHT, lambda layer, q: (layer.update(q), layer.update(q), 1e9))
    assert (record.verdict, record.telling) == (Verdict.INCONCLUSIVE, 0)


def test_a_mistake_in_the_property_is_no_violation_of_the_layer() -> None:
    for function, words in (
        (lambda *_: 1 / 0, "ZeroDivisionError"),
        (lambda *_: 3, "a property must return (got, due, allowed), not int"),
        (lambda layer, q: (layer.update(q), torch.zeros(7), 0.0), "they do not fit"),
        (lambda layer, q: (layer.update(q), 0.0, -1.0), "at least 0"),
    ):
        record = judged(RIGHT, function)
        assert record.verdict == Verdict.SUITE_ERROR
        assert words in str(record.reason)


def test_what_the_layer_lacks_is_not_asked() -> None:
    stated = layer_property(claim="It is odd.", source="our notes", needs=("lagrangian",))(is_odd)
    (record,) = finished(run_here(RIGHT, "it", [stated.property], QUICK)).records
    assert record.verdict == Verdict.NOT_OFFERED


@pytest.mark.parametrize("of", ["attention", "mlp", "block"])
def test_what_is_right_is_right_for_every_layer_of_an_implementation(of: Any) -> None:
    def follows(layer: Any, case: Any) -> Any:
        return layer.update(case), layer.right(case), layer.roundoff(case)

    functions: dict[str, Any] = {of: lambda *arguments: reference.functions[of](*arguments) / 2}
    half = implementation(**functions)
    record = judged(reference, follows, of=of, mutants={"half": half}, least={"J": 2})
    assert record.verdict == Verdict.HOLDS, record.reason
    assert judged(half, follows, of=of).verdict == Verdict.VIOLATED


def test_the_energy_and_the_cache_can_be_asked() -> None:
    def energies(layer: Any, case: Any) -> Any:
        return layer.energy(case) * 2, 2 * layer.energy(case), layer.roundoff_of_energy(case)

    def decodes(layer: Any, case: Any) -> Any:
        same = replace(case, x=case.h)
        return layer.decoded(same), layer.update(same), 2 * layer.roundoff(same)

    assert judged(reference, energies, of="mlp", needs=("mlp_energy",)).verdict == Verdict.HOLDS
    assert judged(reference, decodes, of="attention", needs=("decode",)).verdict == Verdict.HOLDS


def test_a_stated_property_is_still_a_function() -> None:
    stated = layer_property(claim="It is odd.", source="our notes")(is_odd)
    layer = SimpleNamespace(update=lambda question: {"x": question.x["x"]}, roundoff=lambda question: 0.0)
    got, expected, _ = stated(layer, Question({"x": torch.ones(1, 1)}, {"memory": torch.ones(1, 1)}))
    assert torch.equal(got["x"], expected["x"])


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ({"function": lambda layer: layer}, r"must take \(layer, question\), not \(layer\)"),
        ({"claim": " "}, "claim must be a sentence for the report, not ' '"),
        ({"of": "heads"}, "of must be 'energy layer', 'attention', 'mlp' or 'block', not 'heads'"),
        ({"name": "gradient/mlp/silu"}, "own/ is put before it"),
        ({"needs": ("energies",)}, "needs has 'energies', which is not one of"),
        ({"needs": "energy"}, "write \\('energy',\\)"),
        ({"options": {}}, "an energy layer has no options"),
        ({"floor": 3}, "floor must be a share from 0 to 1"),
        ({"mutants": {"right": reference}}, "the mutant 'right' is no energy layer"),
        ({"mutants": {"nothing": 3}}, "the mutant 'nothing' is an int, not an implementation"),
        ({"mutants": [RIGHT]}, "mutants must map what is wrong to a wrong layer"),
        ({"of": "mlp", "least": {"D": 3}}, "those of J and B, not of 'D'"),
    ],
)
def test_a_declaration_that_cannot_be_used_is_refused_in_a_sentence(declared: dict[str, Any], sentence: str) -> None:
    function = declared.pop("function", is_odd)
    with pytest.raises(ValueError, match=sentence):
        layer_property(**{"claim": "It is odd.", "source": "our notes", **declared})(function)


def test_no_property_of_the_catalogue_has_an_id_of_that_family() -> None:
    assert OWN not in {property_.family for property_ in catalogue()}
    assert not is_newer("own/is-odd", "2026.11")
    assert parse_known(known("own/is-odd"), "known.toml")[0].property == "own/is-odd"


FILE = f"""
from dataclasses import replace
from typing import Any
from cemverify import layer_property

@layer_property(claim="It is odd.", source="our notes", controls=("constant",))
{getsource(is_odd)}"""


@pytest.fixture
def folder(here: Path) -> Path:
    """A folder with files of properties, one of them in a sub-folder."""
    (here / "notes").mkdir()
    (here / "notes" / "odd.py").write_text(FILE)
    (here / "same.py").write_text(FILE)
    (here / "nothing.py").write_text("")
    (here / "broken.py").write_text(FILE.replace('"It is odd."', '""'))
    return here


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("named", "sentence"),
    [
        (["missing.py"], "there is no file 'missing.py'"),
        (["nowhere"], "no module 'nowhere'"),
        (["nothing.py"], "'nothing' states no property: put @layer_property"),
        (["broken.py"], "importing 'broken' failed: ValueError: layer_property 'is-odd': claim must be a sentence"),
        (["notes/odd.py", "same.py"], "'notes.odd' and 'same' both state own/is-odd"),
    ],
)
def test_a_file_that_cannot_be_used_is_refused_in_a_sentence(named: list[str], sentence: str, told: Told) -> None:
    assert sentence in told(f"cemverify check reference --properties-from {' '.join(named)}", 2).err


@pytest.mark.usefixtures("folder")
def test_a_property_from_a_file_is_told_with_its_file_and_one_file_named_twice_is_one_file() -> None:
    for layer, verdict in ((RIGHT, "holds"), (WRONG, "violated")):
        sources: list[str | Path] = ["same.py", "same", Path("same.py")]
        run = check_implementation(layer, properties=["own"], properties_from=sources, examples=12).finished
        (entry,) = files.as_json(run, Maker.now("test", {}, 0, "cpu"))["properties"]
        assert (entry["id"], entry["stated_in"], entry["verdict"]) == ("own/is-odd", "same", verdict)
        assert 'classname="cemverify.own" name="is-odd"' in files.as_junit(run)
    with pytest.raises(LoadError, match=r"must be a list: write \['same.py'\]"):
        own_properties("same.py")
