"""Files are replaced as a whole, streams written through, links followed, and inputs never overwritten."""

from __future__ import annotations

import contextlib
import os
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from cemverify.processes.atomic_files import replacing, sweep
from cemverify.processes.inputs import read_bytes, read_text
from cemverify.processes.targets import put, target_of
from cemverify.results.envelope import ResultError, check_outputs


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("folder/file")
    (tmp_path / "again").symlink_to("link")
    for content in (b"made", b"replaced"):
        put(tmp_path / "again", content)
        assert (tmp_path / "folder" / "file").read_bytes() == content
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "again").is_symlink()
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["file"]


def test_what_is_neither_file_nor_stream_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "one").symlink_to("other")
    (tmp_path / "other").symlink_to("one")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind("socket")
        refusals = {"symbolic links": ("loop", "one", "loop/file"), "it is a folder": (".", "..")}
        for why, names in {**refusals, "a disk or a socket": ("socket",)}.items():
            for name in names:
                with pytest.raises(OSError, match=why):
                    target_of(Path(name))
    assert (tmp_path / "loop").is_symlink()


def test_a_pipe_is_written_through_to_its_reader_and_refused_without_one(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="nobody reads from this pipe"):
        put(pipe, b"content")
    number = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    read: list[bytes] = []
    os.set_blocking(number, True)
    content = b"x" * 300_000  # more than the capacity of a pipe

    def drain() -> None:
        while sum(map(len, read)) < len(content):
            read.append(os.read(number, 65536))

    reader = threading.Thread(target=drain)
    reader.start()
    put(pipe, content)
    reader.join()
    os.close(number)
    assert b"".join(read) == content
    assert stat.S_ISFIFO(pipe.stat().st_mode)


# Stand-ins for the stdout of a process, in a test's folder: no test uses the machine's own.
PROGRAM = """
import sys
from pathlib import Path
from cemverify.results.envelope import check_outputs, show, write_text
path = Path(sys.argv[1])
show("before")
check_outputs(path)
write_text(path, "content\\n")
show("after")
"""


def _run(path: Path, out: Path, mode: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(path)]
    with open(out, mode) as stdout:
        return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("link", ["/proc/self/fd/1", "/dev/fd/1"])
def test_a_link_to_stdout_appends_there_and_what_is_printed_after_goes_to_stderr(link: str, tmp_path: Path) -> None:
    (tmp_path / "stdout").symlink_to(link)
    out = tmp_path / "summary"
    out.write_text("there already\n")
    done = _run(tmp_path / "stdout", out, "a")
    assert (done.returncode, done.stderr, out.read_text()) == (0, "after\n", "there already\nbefore\ncontent\n")
    assert os.readlink(tmp_path / "stdout") == link
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stdout", "summary"]


def test_an_open_descriptor_is_written_to_where_it_stands(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"old, ")
    with log.open("ab") as appended:
        put(Path(f"/dev/fd/{appended.fileno()}"), b"new")
    assert log.read_bytes() == b"old, new"


def test_the_file_that_stdout_goes_to_is_not_replaced_behind_its_back_and_what_is_thrown_away_is_two(
    tmp_path: Path,
) -> None:
    out, null = tmp_path / "report", Path("/dev/null")
    done = _run(out, out, "w")
    assert (done.returncode, done.stderr, out.read_text()) == (0, "after\n", "before\ncontent\n")
    done = _run(null, null, "w")
    assert (done.returncode, done.stderr) == (0, ""), "what is printed afterwards goes to stdout still"


@pytest.mark.parametrize("alias", [os.link, os.symlink])
def test_outputs_and_inputs_are_compared_by_what_they_are(alias: Callable[..., None], tmp_path: Path) -> None:
    first, other = tmp_path / "first", tmp_path / "other"
    first.write_text("1")
    alias(first, other)
    (tmp_path / "folder").mkdir()
    around = tmp_path / "folder" / ".." / "first"
    for second in (first, other, around):
        if alias is not os.link:  # two names of one file become two files when one is replaced
            with pytest.raises(ResultError, match="two outputs have the same path"):
                check_outputs(first, second)
        with pytest.raises(ResultError, match="is read, and would be overwritten"):
            check_outputs(second, read=[first])
    check_outputs(Path("/dev/null"), Path("/dev/null"), read=[first])
    assert first.read_text() == "1"


def test_outputs_that_do_not_fit_together_are_refused_before_the_work(tmp_path: Path) -> None:
    made = tmp_path / "made"
    pairs = ((made, made / "deep" / "file"), (), ()), ((made,), (made,), ()), ((made,), (), (made / "store",))
    for outputs, folders, stores in pairs:
        with pytest.raises(ResultError, match="cannot be a file, and a folder for"):
            check_outputs(*outputs, folders=folders, stores=stores)
    check_outputs(made / "file", folders=[made], stores=[made / "store"])
    null = Path("/dev/null")
    for which in ("page", "pictured", "updated"):
        with pytest.raises(ResultError, match="so it has to be a regular file"):
            check_outputs(**{which: null})  # type: ignore[arg-type]
    with pytest.raises(ResultError, match="too; give --output another name"):
        check_outputs(tmp_path / "page.json", page=tmp_path / "page.md")
    check_outputs(tmp_path / "page.json", pictured=tmp_path / "page.md")
    assert list(tmp_path.iterdir()) == []


def test_the_modules_of_a_package_that_is_judged_are_not_overwritten(tmp_path: Path) -> None:
    package = tmp_path / "package"
    package.mkdir()
    (package / "layer.py").touch()
    with pytest.raises(ResultError, match="is read, and would be overwritten"):
        check_outputs(package / "layer.py", read=[package])
    check_outputs(package / "result.json", read=[package])
    check_outputs(package / "new.py", read=[package])


DIGITS = "0123456789abcdef" * 2


def test_a_file_changes_when_its_successor_is_complete(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "file"
    with replacing(path) as aside:
        aside.write_text("old")
        assert not path.exists()
    path.chmod(0o600)
    with replacing(path, durable=False) as aside:
        aside.write_text("new")
        assert path.read_text() == "old"
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)
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


def test_a_file_and_a_pipe_with_a_writer_are_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("τ" * 100_000)
    assert read_text(tmp_path / "file") == "τ" * 100_000
    ours, theirs = os.pipe()

    def write() -> None:
        for _ in range(20):
            os.write(theirs, b"x" * 10_000)
        os.close(theirs)

    writer = threading.Thread(target=write)
    writer.start()
    assert read_bytes(Path(f"/dev/fd/{ours}")) == b"x" * 200_000  # like `<(command)` in a shell
    writer.join()
    os.close(ours)


def test_what_is_too_long_or_a_pipe_that_nobody_writes_to_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(2**40)
    too_long = "at most 268,435,456 bytes are read"
    for name, why in (("/dev/zero", too_long), ("large", too_long), (".", "Is a direc"), ("none", "No such file")):
        with pytest.raises(OSError, match=why):
            read_bytes(tmp_path / name)
    assert read_bytes(tmp_path / "pipe") == b""
    with pytest.raises(OSError, match="more"):
        read_bytes(Path("/proc/self/status"), most=100)  # its size is reported as 0
