"""Files are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from cemverify.processes.atomic_files import replacing, sweep

DIGITS = "0123456789abcdef" * 2


def test_a_file_changes_when_its_successor_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with replacing(path) as aside:
        aside.write_text("old")
        assert not path.exists()
    with replacing(path, durable=False) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(path.parent.iterdir()) == [path]


def test_a_failure_leaves_what_was_there_and_nothing_aside(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("old")
    for failure in (KeyboardInterrupt, ValueError):
        with contextlib.suppress(failure), replacing(path) as aside:
            aside.write_text("half")
            raise failure
    with pytest.raises(OSError, match="No such file"), replacing(path):
        pass  # nothing was written
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_with_all_that_is_in_it(tmp_path: Path) -> None:
    with replacing(tmp_path / "folder") as aside:
        aside.mkdir()
        (aside / "a").touch()
    assert (tmp_path / "folder" / "a").exists()
    with contextlib.suppress(ValueError), replacing(tmp_path / "other") as aside:
        aside.mkdir()
        (aside / "a").touch()
        raise ValueError
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


def test_only_what_was_begun_aside_and_forgotten_for_a_day_is_swept(tmp_path: Path) -> None:
    forgotten, fresh, hidden, plain = (tmp_path / n for n in (f".a.{DIGITS}", f".b.{DIGITS}", ".c", "d"))
    for path in (forgotten, fresh, hidden, plain):
        path.mkdir()
        (path / "content").touch()
        if path != fresh:
            os.utime(path, (0, 0))
    sweep(tmp_path)
    assert [path.exists() for path in (forgotten, fresh, hidden, plain)] == [False, True, True, True]
    sweep(tmp_path / "missing")
