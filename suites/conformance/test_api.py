"""The catalogue from a third party's tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from cemverify import check_implementation, parametrize_with_properties
from cemverify.api import Check
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.implementations.reference import reference

pytest_plugins = ["pytester"]


def test_two_lines_make_one_test_per_property(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from cemverify import parametrize_with_properties, implementation
        from cemverify.conformance.implementations import reference

        def mlp(x, h, w, c):
            return reference.mlp(x, h, w, c) * (1.001 if c.activation == "tanh" else 1)

        mine = implementation(mlp=mlp, not_offered=("norm",))

        @parametrize_with_properties(mine, properties=["gradient/mlp"], examples=10)
        def test_mlp(check): check()
        """
    )
    result = pytester.runpytest("-p", "no:cacheprovider", "-rA")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 2  # tanh, and the mixture of all options, which has it too
    assert outcomes["passed"] >= 10
    assert outcomes["skipped"] >= 3
    result.stdout.fnmatch_lines(["*VIOLATED gradient/mlp/tanh*", "*SKIPPED*not offered: *norm:scalar: declared*"])


def mark_of(path: Path, property_: str) -> Check:
    """The one check that the decorator makes of a property."""
    mark: Any = parametrize_with_properties("reference", properties=[property_], examples=3, known=path)
    check: Check = mark.args[1][0].values[0]
    return check


def test_a_stale_entry_fails_the_test_of_its_property_and_of_no_other(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(
        '[[violation]]\nimplementation = "reference"\nproperty = "contract/mlp/determinism"\n'
        'cause = "*"\nreason = "so"\nexpires = 9999-12-31\n'
    )
    with pytest.raises(pytest.fail.Exception, match="holds again; delete the entry on line 1"):
        mark_of(path, "contract/mlp/determinism")()
    assert mark_of(path, "contract/mlp/shape-and-dtype")().verdict == "holds"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"properties": "gradient/attention/plain"}, r"write \('gradient/attention/plain',\)"),
        *(({"examples": wrong}, "examples must be a whole number of at least 1") for wrong in ("ten", 0, 2.5, True)),
    ],
)
def test_options_of_another_kind_are_refused_in_a_sentence(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        check_implementation(reference, **options)
    with pytest.raises(ValueError, match="known violations are listed by name"):
        parametrize_with_properties(reference, known="known.toml")


@pytest.mark.parametrize(
    ("implementation", "message"),
    [
        (
            torch.nn.Linear(2, 2),
            "a Linear, not an implementation: make one with cemverify.implementation_from_modules",
        ),
        (len, "not an implementation: make one with cemverify.implementation(attention=...)"),
        (3, "an int, not an implementation"),
    ],
)
def test_what_is_not_an_implementation_is_told_which_call_makes_one(implementation: object, message: str) -> None:
    with pytest.raises(LoadError, match=re.escape(message)):
        check_implementation(implementation)
