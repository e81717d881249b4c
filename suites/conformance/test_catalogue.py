"""Every property of the catalogue: tested on --implementation (by default the reference), explained, on the page."""

from __future__ import annotations

import json
import os
import re
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import torch

from cemverify.api import Check, UnderTest
from cemverify.catalogue import budgets, index
from cemverify.catalogue.versions import introduced
from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.commands import contract_page, property_page
from cemverify.commands import list as list_command
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations.contract import kind_of, load
from cemverify.conformance.implementations.features import FEATURES, OPTIONS, WEIGHTS
from cemverify.conformance.judging.effort import Effort
from cemverify.conformance.judging.engine import judge_property
from cemverify.conformance.judging.offered import applicable, not_offered
from cemverify.conformance.judging.verdicts import Verdict
from cemverify.conformance.properties import by_id, catalogue, select
from cemverify.conformance.properties.base import CONTROLS
from cemverify.conformance.questions.cases import dense_case, weight_shapes
from cemverify.console.errors import UsageError
from cemverify.results import envelope
from docs.making import listing as writing
from suites.kit.commands import Told
from suites.kit.source import ROOT


def device_of_worker(wanted: str) -> str:
    """The device of this process: "cuda" and "auto" distribute xdist's workers over all GPUs."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "auto" and count == 0:
        return "cpu"
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    return f"cuda:{worker % max(1, count)}" if wanted in ("auto", "cuda") else wanted


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Makes one test per property, so that workers can share them and each can be selected by name."""
    option = metafunc.config.getoption
    if "check" not in metafunc.fixturenames:
        return
    subject = load(option("--implementation"))
    explore = hypothesis.settings.default is hypothesis.settings.get_profile("explore")
    effort = Effort(
        examples=option("--examples") or (300 if explore else 60 if option("--thorough") else 12),
        seed=int(os.environ.get("CEMVERIFY_SEED", "0")),
        dtype=getattr(torch, option("--dtype")),
        device=device_of_worker(option("--device")),
    )
    checks = [Check(property_, UnderTest(subject, effort)) for property_ in applicable(kind_of(subject), catalogue())]
    metafunc.parametrize("check", checks, ids=[check.property.id for check in checks])


def test_the_property_holds(check: Check) -> None:
    check()


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("prefix", ["gradient/attention", "gradient/mlp", "recursion", "structure", "precision"])
def test_the_reference_holds_on_cuda(prefix: str, dtype: torch.dtype) -> None:
    subject = load("cemverify:reference")
    effort = Effort(dtype=dtype, device=device_of_worker("cuda"))
    properties = [p for p in applicable(kind_of(subject), catalogue()) if p.id.startswith(prefix)]
    records = [judge_property(subject, p, effort) for p in properties if not_offered(p, {}, dtype) is None]
    # in bfloat16 some differences are below roundoff, on the CPU too
    allowed = {Verdict.HOLDS} | ({Verdict.INCONCLUSIVE} if dtype is torch.bfloat16 else set())
    assert [(r.id, r.verdict, r.reason) for r in records if r.verdict not in allowed] == []


def test_a_property_is_named_once_and_states_its_source_premise_controls_formula_and_reason() -> None:
    ids = [p.id for p in catalogue()]
    assert len(ids) == len(set(ids))
    assert {id_ for part in json.loads(budgets.FILE.read_text()).values() for id_ in part} <= set(ids)
    for p in catalogue():
        assert p.id.count("/") == 2, p.id
        assert p.source, p.id
        assert p.claim.endswith("."), p.id
        assert p.premise, p.id
        assert 0 < p.floor <= 1, p.id
        assert p.controls <= CONTROLS.keys(), p.id
        if p.kind == "energy layer":
            assert not p.controls & {"detached", "shuffled"}, p.id
        assert p.formula, p.id
        assert p.why[0].isupper() or p.why.startswith(("exp ", "x and h ")), p.id
        assert p.why.endswith("."), p.id


def test_an_example_tells_only_where_the_rival_shows() -> None:
    """Positions cannot matter to a single token: a run of such cases is vacuous, and its count shows that."""
    (property_,) = select(["gradient/attention/alibi"])
    config = AttentionConfig(4, 2, position="alibi", temperature=1.0)
    one, several = (dense_case(config, 1, tokens, seed=0) for tokens in (1, 4))
    caller = Caller(load("cemverify:reference"))
    assert not property_.check(caller, one).telling
    assert property_.check(caller, several).telling


def test_the_list_says_what_the_properties_declare() -> None:
    command = "python -m docs.making.listing"
    assert index.FILE.read_text(encoding="utf-8") == writing.text(), f"write it again: {command}"


def test_no_id_leaves_the_catalogue_or_moves_in_it_unnoticed(monkeypatch: pytest.MonkeyPatch) -> None:
    old = {row.id: row.since for row in index.recorded()}
    rows = writing.rows()
    first, second = rows[0], rows[1]
    gone = index.Retired(first.id, first.claim, first.since, "2027.01", second.id)
    writing.check(old, rows, index.retired())
    writing.check(old, rows[1:], {first.id: gone})
    for now, complaint in (
        (rows[1:], f"no property is declared with the id {first.id}"),
        ([*rows, first], f"two properties have the id {first.id}"),
        ([replace(first, since="2027.02"), *rows[1:]], f"{first.id} came with catalogue 2026.11"),
    ):
        with pytest.raises(UsageError, match=complaint):
            writing.check(old, now, {})
    later = {**old, first.id: "2027.02"}
    del later[second.id]
    with pytest.raises(UsageError, match=f"{second.id} is new .* a catalogue 2027.02 already"):
        writing.check(later, [replace(first, since="2027.02"), replace(second, since="2027.01"), *rows[2:]], {})
    monkeypatch.setattr(writing, "RELEASED", ("2027.02",))
    with pytest.raises(UsageError, match=f"{second.id} is new .* released and so final"):
        writing.check(later, [replace(first, since="2027.02"), replace(second, since="2027.02"), *rows[2:]], {})


def test_a_retired_id_asks_what_stands_in_its_place_and_says_so(told: Told) -> None:
    for pattern, instead in (
        ("metamorphic/mlp/gate-linearity", {"gradient/mlp/any-options"}),
        ("sequences", {"gradient/attention/any-options", "gradient/mlp/any-options"}),
    ):
        with pytest.warns(DeprecationWarning, match="was retired in catalogue 2026.12; gradient/"):
            assert {p.id for p in select([pattern])} == instead
        with pytest.warns(DeprecationWarning, match="was retired"):
            assert "was retired in catalogue 2026.12" in told(f"cemverify list {pattern}").err
    assert not {p.id for p in catalogue()} & index.retired().keys()


@pytest.mark.parametrize("width", [None, 40, 80])
def test_an_explanation_fits_the_terminal(width: int | None) -> None:
    for property_ in catalogue()[::10]:
        _id, *lines = property_page.explanation(property_, width).splitlines()
        assert max(map(len, lines)) <= (width or 110)


def test_one_property_is_explained_with_a_violation_that_was_found_now(told: Told, here: Path) -> None:
    id_ = "gradient/mlp/silu"
    output = told(f"cemverify list {id_} --json list.json").out
    (mutant, *_) = property_page.killers(by_id(id_))
    parts = [by_id(id_).formula, "controls", f"catalogue {introduced()[id_]}", f"VIOLATED {id_}"]
    parts += ["smallest case found", f"{mutant.id}: ", f"found just now in the mutant {mutant.id}"]
    assert [part for part in parts if part not in output] == []
    (written,) = envelope.read(here / "list.json")["properties"]
    assert written["introduced"] == introduced()[id_]
    assert mutant.id in written["kills"]
    assert json.dumps(written["formula"]) in (here / "list.json").read_text()


@pytest.mark.parametrize("width", [40, 57, 80, 119, 200])
def test_the_list_fits_the_terminal(width: int, capsys: pytest.CaptureFixture[str]) -> None:
    chosen = index.listed()[::7]
    list_command._list(chosen, width)
    output = capsys.readouterr().out
    assert max(map(len, output.splitlines())) <= width
    flat = "".join(output.split())
    patterns = [pattern for alike in index.by_claim(chosen) for pattern in index.patterns(p.id for p in alike)]
    matched = {p.id for p in index.listed() for pattern in patterns if fnmatchcase(p.id, pattern)}
    assert matched == {p.id for p in chosen}
    assert width < 120 or all(pattern in flat for pattern in patterns)  # up to 49 columns wide, they wrap below 120


def test_the_page_is_what_the_command_prints_and_names_every_option_and_activation(told: Told) -> None:
    page = (ROOT / "docs" / "contract.md").read_text()
    assert page == told("cemverify list --contract").out, "cemverify list --contract > docs/contract.md"
    assert set(OPTIONS) == {f.name for config in (AttentionConfig, MLPConfig) for f in fields(config)}
    features = [name.partition(":")[2] for name in FEATURES if name.startswith("activation:")]
    assert features == list(ACTIVATIONS)


@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per-head"])
@pytest.mark.parametrize("norm", ["scalar", "channel"])
def test_every_weight_that_an_implementation_gets_has_a_shape_on_the_page(per_head: bool, norm: str) -> None:
    low_rank = PreconditionerConfig("low-rank", rank=7, per_head=per_head)
    options: dict[str, Any] = {"norm": norm, "preconditioner": low_rank}
    diagonal: Any = "per-head" if per_head else "shared"
    attention = AttentionConfig(5, 2, head_dim=3, diagonal=diagonal, position="self-cross", **options)
    mlp = MLPConfig(5, 11, **{**options, "preconditioner": replace(low_rank, per_head=False)})
    sizes = {"K": 2, "R": 3, "D": 5, "M": 11, "r": 7}
    seen = set()
    for config in (attention, mlp):
        for name, shape in weight_shapes(config).items():
            allowed = [re.findall(r"\w+", letters) for letters in WEIGHTS[name][0].split(" or ")]
            assert shape in [tuple(int(n) if n.isdigit() else sizes[n] for n in each) for each in allowed], name
            seen.add(name)
    assert seen == set(WEIGHTS)


# the patterns of properties in a section of the contract
CONTRACT = contract_page.as_markdown()
ASKED_BY = [re.findall("`(.+?)`", line) for line in re.findall("^Tested by (.+)", CONTRACT, re.MULTILINE)]


def test_every_section_of_the_contract_names_its_properties_and_every_property_of_it_is_named() -> None:
    assert all(select(patterns) for patterns in ASKED_BY)
    sections = CONTRACT.split("\n## ")[2:]  # the first section describes the functions
    assert all(text.endswith("Every property tests this.\n") == ("\nTested by " not in text) for text in sections)
    named = {p.id for patterns in ASKED_BY for p in select(patterns)}
    alone = {p.id for p in catalogue() if p.source == "contract" and p.kind == "CEM implementation"}
    assert alone - named == set()
