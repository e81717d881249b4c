"""The page of the contract says what the code says, and names properties for all of it."""

from __future__ import annotations

import contextlib
import io
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from cemverify import cli
from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig, MLPConfig, PreconditionerConfig
from cemverify.conformance.implementations.clauses import CLAUSES
from cemverify.conformance.implementations.features import FEATURES, OPTIONS, WEIGHTS
from cemverify.conformance.properties import catalogue, select
from cemverify.conformance.questions.cases import weight_shapes

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"


def test_the_page_is_what_the_command_prints() -> None:
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        cli.main(["list", "--contract"])
    assert PAGE.read_text() == printed.getvalue(), "regenerate it: cemverify list --contract > docs/contract.md"


def test_the_page_names_every_option_of_a_configuration() -> None:
    named = {f.name for config in (AttentionConfig, MLPConfig) for f in fields(config)}
    assert set(OPTIONS) == named


def test_every_activation_is_a_feature() -> None:
    features = [name.partition(":")[2] for name in FEATURES if name.startswith("activation:")]
    assert features == list(ACTIVATIONS)


@pytest.mark.parametrize("per_head", [False, True], ids=["shared", "per-head"])
@pytest.mark.parametrize("norm", ["scalar", "channel"])
def test_every_weight_that_an_implementation_gets_has_a_shape_on_the_page(per_head: bool, norm: str) -> None:
    low_rank = PreconditionerConfig("low-rank", rank=7, per_head=per_head)
    options: dict[str, Any] = {"norm": norm, "preconditioner": low_rank}
    attention = AttentionConfig(
        5, 2, head_dim=3, diagonal="per-head" if per_head else "shared", position="self-cross", **options
    )
    mlp = MLPConfig(5, 11, **{**options, "preconditioner": replace(low_rank, per_head=False)})
    sizes = {"K": 2, "R": 3, "D": 5, "M": 11, "r": 7}
    seen = set()
    for config in (attention, mlp):
        for name, shape in weight_shapes(config).items():
            allowed = WEIGHTS[name].shape.split(" or ")
            assert shape in [_shape(letters, sizes) for letters in allowed], name
            seen.add(name)
    assert seen == set(WEIGHTS)


def test_every_clause_is_asked_by_properties_that_there_are_or_says_why_not() -> None:
    for clause in CLAUSES:
        assert select(clause.asked_by) if clause.asked_by else clause.unasked or clause.title == "The functions"
        assert not clause.unasked or clause.unasked.endswith(".")


def test_every_property_that_comes_from_the_contract_alone_is_named_on_the_page() -> None:
    named = {p.id for clause in CLAUSES if clause.asked_by for p in select(clause.asked_by)}
    assert not [
        p.id for p in catalogue() if p.source == "contract" and p.kind == "CEM implementation" and p.id not in named
    ]


def _shape(letters: str, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(int(n) if n.isdigit() else sizes[n] for n in letters.strip("()").replace(",", " ").split())
