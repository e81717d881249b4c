"""The changes by which our tests are tried: which there are, and which of them are taken."""

from __future__ import annotations

from collections import Counter

import pytest

from suites import mutations

pytest.importorskip("cosmic_ray", reason="cosmic-ray is not installed")


def test_every_file_that_is_changed_has_tests_that_exist() -> None:
    for path in mutations.files():
        asked = [part for part in mutations.tests_of(path).split() if part.startswith("suites/")]
        assert asked
        assert all((mutations.ROOT / part).exists() for part in asked)


def test_what_is_wrong_on_purpose_is_not_changed() -> None:
    assert not any(path.startswith("cemverify/power/mutants") for path in mutations.files())


def test_annotations_are_left_alone_and_code_is_not() -> None:
    found = mutations.changes("cemverify/cem/llama.py")
    assert not [c for c in found if "past: KeyValueCache | None = None" in c.source and "BitOr" in c.operator]
    assert [c for c in found if c.source == "return h + update, cache" and c.operator.endswith("Add_Sub")]


def test_a_sample_depends_on_its_seed_alone_and_takes_one_change_of_a_place() -> None:
    found = mutations.changes("cemverify/results/statistics.py")
    chosen = mutations.sampled(found, 30, seed=1)
    assert chosen == mutations.sampled(found, 30, seed=1)
    assert chosen != mutations.sampled(found, 30, seed=2)
    assert set(Counter((c.line, c.column) for c in chosen).values()) == {1}


def test_whatever_is_accepted_is_there_and_has_a_reason() -> None:
    for (path, line, operator), reason in mutations.accepted().items():
        assert reason
        assert any(c.source == line for c in mutations.changes(path, [operator])), (path, line)
