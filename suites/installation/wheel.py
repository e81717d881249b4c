"""`python -m suites.installation.wheel`: builds the wheel from the sdist, and uses it alone.

Both are built twice and must have the same bytes. The wheel is installed into an empty environment, and tried there
in an empty folder: the first steps, the three ways in, README's layer, the tutorial, and its tests by pytest. Then uv
and pipx run it without an installation, as `uvx` and `pipx run` do. Exit code 0 if everything went as it should, 1 if
not.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from suites.installation.routes import DOORS, TESTS, TUTORIAL
from suites.installation.trials import FIRST_STEPS, Trial, attempt, report
from suites.kit.source import ROOT

CONSTRAINTS = ROOT / "constraints.txt"

_GIT = shutil.which("git") or "git"

ONE = (
    Trial("--version", "cemverify "),
    Trial("check reference --properties gradient/attention/plain --examples 10", "1 run: 1 hold"),
)


def build(into: Path) -> Path:
    """Builds the sdist, and from it the wheel, from the files of the commit; returns the wheel.

    Two builds of a commit have the same bytes, whoever builds, when and where: files have the commit's time, a fixed
    order, no owner, and permissions that do not depend on a umask.
    """
    shutil.rmtree(into, ignore_errors=True)
    with tempfile.TemporaryDirectory() as there:
        source = Path(there) / "source"
        epoch = _checked_out(source)
        command = [sys.executable, "-m", "build", "--outdir", str(into), str(source)]
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch)}
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=environment)
    (sdist,) = into.glob("*.tar.gz")
    normalise(sdist, epoch)
    (wheel,) = into.glob("*.whl")
    return wheel


def _checked_out(folder: Path) -> int:
    """Copies tracked files as they are, with plain permissions and the commit's time; returns that time."""
    log = subprocess.run([_GIT, "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = subprocess.run([_GIT, "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    epoch = int(log.stdout)
    for name in listed.stdout.split("\0"):
        if name and (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(ROOT / name, folder / name)
            (folder / name).chmod(0o644)
            os.utime(folder / name, (epoch, epoch))
    return epoch


def normalise(sdist: Path, epoch: int) -> None:
    """Repacks an sdist: sorted names, one time, no owner, the plainest header."""
    with tarfile.open(sdist) as packed:
        members = sorted(packed.getmembers(), key=lambda member: member.name)
        files = [(member, packed.extractfile(member) if member.isfile() else None) for member in members]
        plain = io.BytesIO()
        with tarfile.open(fileobj=plain, mode="w", format=tarfile.USTAR_FORMAT) as again:
            for member, content in files:
                member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
                member.mode, member.pax_headers = (0o755 if member.isdir() else 0o644), {}
                again.addfile(member, content)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", mtime=epoch, fileobj=file) as zipped:
        zipped.write(plain.getvalue())


def digests(folder: Path) -> dict[str, str]:
    """The built files, each with its SHA-256."""
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in sorted(folder.glob("cemverify-*"))}


def package_data() -> set[str]:
    """Files in the distributions that are not code, as pyproject.toml names them."""
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    return {f"{package.replace('.', '/')}/{name}" for package, names in packed.items() for name in names}


def strangers(wheel: Path) -> list[str]:
    """Files that the wheel should not contain, and files that it lacks."""
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = package_data() | {str(path.relative_to(ROOT)) for path in (ROOT / "cemverify").rglob("*.py")}
    about = {name for name in names if ".dist-info/" in name}
    foreign = [f"{name} does not belong there" for name in sorted(names - expected - about)]
    return [*foreign, *(f"{name} is missing" for name in sorted(expected - names))]


def install(wheel: Path, folder: Path, *arguments: str) -> Path:
    """Makes an environment with only the wheel in it; returns the folder of its programs.

    Raises:
        CalledProcessError: pip could not install it.
    """
    venv.create(folder, with_pip=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    pip: list[str | Path] = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments, wheel], check=True, capture_output=True, text=True)
    return programs


def without_installing(wheel: Path) -> Iterator[tuple[str, list[str | Path]]]:
    """The programs that can run a wheel directly, uv and pipx, as far as they are installed."""
    if uv := shutil.which("uv"):
        local = ["--find-links", links] if (links := find_links()) else []
        how: list[str | Path] = ["--quiet", "--constraints", CONSTRAINTS, *local]
        yield "uvx", [uv, "tool", "run", *how, "--from", wheel, "cemverify"]
    if pipx := shutil.which("pipx"):
        yield "pipx run", [pipx, "run", "--spec", wheel, "--pip-args", f"--constraint {CONSTRAINTS}", "cemverify"]


def find_links() -> str | None:
    """A folder of wheels from pip's settings, for uv, which does not read these."""
    command = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
    return subprocess.run(command, capture_output=True, text=True).stdout.strip() or None


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds, installs, tries; see the module."""
    parser = argparse.ArgumentParser(prog="python -m suites.installation.wheel", description=__doc__)
    where = ROOT / "out" / "dist"
    parser.add_argument("--output", type=Path, default=where, metavar="DIR", help="where they are left")
    parser.add_argument("--build-only", action="store_true", help="build twice, compare the bytes, and try nothing")
    options = parser.parse_args(arguments)
    wheel = build(options.output)
    print(f"built {wheel} ({wheel.stat().st_size / 1e6:.2f} MB)")
    with tempfile.TemporaryDirectory() as there:
        build(Path(there) / "again")
        once, twice = digests(options.output), digests(Path(there) / "again")
    for name, digest in once.items():
        print(f"  {digest}  {name}{'' if twice.get(name) == digest else '  AND OTHER BYTES WHEN BUILT AGAIN'}")
    if options.build_only:
        return 0 if once == twice else 1
    faults = strangers(wheel) + ["two builds differ"] * (once != twice)
    print("".join(f"  {fault}\n" for fault in faults), end="")
    good = not faults
    with tempfile.TemporaryDirectory() as there:
        started = time.monotonic()
        programs = install(wheel, Path(there) / "environment", "--constraint", str(CONSTRAINTS))
        print(f"installed into an empty environment in {time.monotonic() - started:.0f} s")
        folder = Path(there) / "folder"
        folder.mkdir()
        good &= report("the wheel alone", attempt([programs / "cemverify"], FIRST_STEPS, folder))
        good &= report("the ways in", attempt([programs / "cemverify"], DOORS, folder))
        good &= report("the tutorial", attempt([programs / "cemverify"], TUTORIAL, folder))
        words = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pytest", "--constraint"]
        subprocess.run([str(programs / "python"), *words, str(CONSTRAINTS)], check=True)
        good &= report("its tests", attempt([programs / "python", "-m", "pytest"], TESTS, folder), "pytest")
        for name, program in without_installing(wheel):
            good &= report(name, attempt(program, ONE, folder))
    for name in ("uv", "pipx"):
        if shutil.which(name) is None:
            print(f"\nNOT TRIED: {name} is not installed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
