"""The pictures of a result, by its kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from reports.pictures import studies
from synthetic.figures.drawing import Picture
from synthetic.studies.recursion import pictures as recursion

DRAWN: Mapping[str, Callable[[Mapping[str, Any]], Iterator[Picture]]] = {
    "recursion": recursion.of_recursion,
    "language": studies.of_language,
    "readings": studies.of_readings,
    "benchmarks": studies.of_benchmarks,
}


def pictures_of(content: Mapping[str, Any]) -> list[Picture]:
    """The pictures of a result; none for a kind that has no numbers to draw."""
    draw = DRAWN.get(content["kind"])
    return [] if draw is None else list(draw(content))
