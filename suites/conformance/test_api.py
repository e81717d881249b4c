"""The catalogue from a third party's tests."""

from __future__ import annotations

import pytest

pytest_plugins = ["pytester"]


def test_two_lines_make_one_test_per_property(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from cemverify import parametrize_with_properties, implementation
        from cemverify.conformance import reference

        def mlp(x, h, w, c):
            return reference.mlp(x, h, w, c) * (1.001 if c.activation == "tanh" else 1)

        mine = implementation(mlp=mlp, not_offered=("norm",))

        @parametrize_with_properties(mine, properties=["gradient/mlp"], examples=10)
        def test_mlp(check): check()
        """
    )
    result = pytester.runpytest("-p", "no:cacheprovider", "-rA")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 1
    assert outcomes["passed"] >= 10
    assert outcomes["skipped"] >= 3
    result.stdout.fnmatch_lines(["*VIOLATED gradient/mlp/tanh*", "*SKIPPED*not offered: *norm:scalar: declared*"])
