"""The results that the tests of reports read are those that the studies write today."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from suites.reports.studies import COMMANDS, made, stored


def shape(value: Any) -> Any:
    """Names and kinds of values, without figures; a list has the shapes of its members, each once."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items() if name not in ("versions", "device", "commit")}
    if isinstance(value, list):
        return [
            inner_shape for i, inner in enumerate(value) if (inner_shape := shape(inner)) not in map(shape, value[:i])
        ]
    return "number" if isinstance(value, int | float) else value if value is None else "words"


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMMANDS)
def test_a_stored_result_has_the_shape_of_what_its_study_writes_today(name: str, tmp_path: Path) -> None:
    then, now = stored(name), made(name, tmp_path)
    assert shape(now) == shape(then)
    assert now["made_by"]["command"] == then["made_by"]["command"]
