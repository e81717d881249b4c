"""The folder in which commands are run and abused, made once for all tests of this package."""

from __future__ import annotations

from pathlib import Path

import pytest

from suites.entry import ground


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of files that commands can read, and files that none can; nothing may change them."""
    made = tmp_path_factory.mktemp("ground")
    ground.make(made)
    ground.spoil(made)
    return made
