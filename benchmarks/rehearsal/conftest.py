"""Loads the stand-in for a GPU before any test imports torch: `python -m pytest benchmarks/rehearsal`."""

from __future__ import annotations

import pytest

from benchmarks.rehearsal.absent_gpu import stand_in


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--each", type=int, default=1, metavar="N", help="every Nth path of an area (default 1)")


def pytest_configure() -> None:
    stand_in()
