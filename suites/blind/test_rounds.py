"""The blind rounds can be tested: every patch fits its base, and the page is made from the results."""

from __future__ import annotations

import hashlib
import random
from functools import cache

import pytest

from suites.blind import matrix
from suites.blind.asking import apart, context
from suites.blind.page import page
from suites.blind.rounds import DATA, answers, load, rounds


@pytest.mark.parametrize("number", [r.number for r in rounds()])
def test_every_patch_fits_its_base_and_makes_another_program(number: int, pytestconfig: pytest.Config) -> None:
    """By default every fifth of the published ones, which do not change."""
    round_ = load(number)
    for fault in (*round_.faults, *round_.styles)[:: 1 if pytestconfig.getoption("--thorough") else 5]:
        source = round_.source(fault.name)
        assert fault in round_.styles or source != round_.source(fault.base)
        compile(source, fault.name, "exec")


def test_every_base_is_as_it_was_when_its_faults_were_asked_and_the_page_has_every_round() -> None:
    pinned = {line[66:]: line[:64] for line in (DATA / "sha256.txt").read_text().splitlines()}
    there = {path.relative_to(DATA).as_posix(): path for path in DATA.glob("**/bases/*")}
    assert {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in there.items()} == pinned
    assert len({path.stem for path in there.values()}) == len(there)  # bases are found by name
    made = page()
    assert [f"<summary>Round {r.number}, {r.written}: " in made for r in rounds()] == [True] * len(rounds())


def test_a_fault_needs_what_finds_it_with_every_seed_and_lacks_fewest_rows_or_else_all_that_find_it() -> None:
    deep, deeper, unsure = (f"gradient/mlp/{name}" for name in ("tanh", "relu", "silu"))
    assert matrix.needed([{deeper: "row90", deep: "row80 small1", unsure: "row99 -"}]) == {deep: 120}
    assert matrix.needed([{unsure: "row9 -"}, {deep: "row80"}]) == {unsure: 14, deep: 120}


@cache
def drawn() -> list[tuple[int, str]]:
    """Eight torch and NumPy faults that were killed, the longest searches last."""
    faults = [(r.number, fault.name) for r in rounds() for fault in r.faults if fault.framework != "jax"]
    killed = [(number, name) for number, name in faults if answers(number).get(name, {}).get("by")]
    return sorted(random.Random(0).sample(killed, 8), key=lambda f: answers(f[0])[f[1]]["seconds"])  # noqa: S311


@pytest.mark.parametrize("place", [*range(6), *(pytest.param(place, marks=pytest.mark.thorough) for place in (6, 7))])
def test_a_fault_that_was_killed_still_is(place: int) -> None:
    number, name = drawn()[place]
    answer = apart(context(), load(number).folder, name, answers(number)[name]["by"])
    if not answer["violated"]:  # some faults show only after other questions
        answer = apart(context(), load(number).folder, name)
    assert answer["violated"], f"`python -m suites.blind ask {number} --killed --names {name}`: {answer}"
