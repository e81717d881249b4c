"""The blind rounds can be asked: every patch fits its base, and the page is made from the answers."""

from __future__ import annotations

import pytest

from suites.blind.page import page
from suites.blind.rounds import answers, load, rounds


@pytest.mark.parametrize("number", [r.number for r in rounds()])
def test_every_patch_fits_its_base_and_makes_another_program(number: int) -> None:
    round_ = load(number)
    bases = {base: round_.source(base) for base in round_.bases}
    for fault in (*round_.faults, *round_.styles):
        source = round_.source(fault.name)
        assert fault in round_.styles or source != bases[fault.base]
        compile(source, fault.name, "exec")


@pytest.mark.parametrize("number", [r.number for r in rounds()])
def test_no_name_stands_twice(number: int) -> None:
    round_ = load(number)
    others = [name for r in rounds() if r is not round_ for name in r.names if name not in r.bases]
    names = [*(fault.name for fault in (*round_.faults, *round_.styles)), *round_.bases, *others]
    assert len(names) == len(set(names))
    assert set(answers(number)) <= set(round_.names)


def test_the_page_has_a_section_for_each_round() -> None:
    made = page()
    assert [f"## Round {r.number}, {r.written}" in made for r in rounds()] == [True] * len(rounds())
