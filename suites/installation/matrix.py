"""`python -m suites.installation.matrix`: the versions of Python and torch that the package supports, one by one.

Every Python from 3.11 to 3.14 with the torch of constraints.txt, and with one of them the newest torch, and the
oldest of everything that pyproject.toml allows. Each gets an empty environment with the wheel alone, and is tried
there. What cannot be tried here is listed with the reason, never as passed: an interpreter that is missing, or a
torch without a CPU build in the index, which would bring gigabytes of CUDA packages (--with-cuda installs them all
the same). Of such a Python, what needs no torch is tried. --debian tries a Debian that debootstrap made in a folder,
with its own Python and torch:

    debootstrap --variant=minbase --include=python3-venv,python3-torch,python3-hypothesis trixie FOLDER

Exit code 0 if whatever was tried went as it should; 1 if something did not, or, with --all, if something could not be
tried. Leaves matrix.json and matrix.md in the folder.
"""

from __future__ import annotations

import argparse
import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from suites.installation.trials import FIRST_STEPS, VERSION_BY_VERSION, Trial, attempt
from suites.installation.wheel import CONSTRAINTS, build, find_links
from suites.kit.source import ROOT

PYTHONS = ("3.11", "3.12", "3.13", "3.14")
TRIALS = (*FIRST_STEPS, *VERSION_BY_VERSION)

_UV = shutil.which("uv") or "uv"

# What torch's builds for CUDA bring along, and its builds for the CPU do not.
_CUDA = re.compile(r"^(nvidia-|cuda-|triton==)", re.MULTILINE)


@dataclass(frozen=True)
class Row:
    """One combination, and what came of it."""

    # versions, as asked and then as found
    python: str
    torch: str
    oldest: bool = False  # whether all else is the oldest allowed, too, and not that of constraints.txt
    standing: str = "not tried"  # or "passed", "failed", or "without torch": what needs none passed
    reason: str = ""  # why it is not "passed"
    trials: int = 0  # how many
    seconds: float = 0.0  # all of them


def combinations() -> list[Row]:
    """The combinations of Python and torch that are to be tried."""
    pinned = re.search(r"^torch==(\S+)", CONSTRAINTS.read_text(), re.MULTILINE)
    oldest = next(word.removeprefix("torch>=") for word in _stated() if word.startswith("torch>="))
    assert pinned is not None
    first = next((version for version in PYTHONS if interpreter(version)), PYTHONS[0])
    rows = [Row(version, pinned[1]) for version in PYTHONS]
    return [*rows, Row(first, f"{oldest}.0" if oldest.count(".") == 1 else oldest, oldest=True), Row(first, "newest")]


def _stated() -> list[str]:
    """What pyproject.toml says that the package needs."""
    needed: list[str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    return needed


def interpreter(version: str) -> str | None:
    """A Python of that version, on the path, of pyenv, or known to uv; None if there is none."""
    on_path = shutil.which(f"python{version}")
    of_pyenv = Path.home().glob(f".pyenv/versions/{version}.*/bin/python")
    for candidate in [*([on_path] if on_path else []), *map(str, of_pyenv)]:
        # a shim of pyenv is there without its Python
        version_text = subprocess.run(
            [candidate, "-c", "import sys; print(sys.version)"], capture_output=True, text=True
        )
        if version_text.returncode == 0 and version_text.stdout.startswith(f"{version}."):
            return candidate
    of_uv = uv("python", "find", "--no-python-downloads", version)
    return of_uv.stdout.strip() if of_uv.returncode == 0 else None


def uv(*words: str | Path, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    """What a call of uv printed."""
    return subprocess.run([_UV, *words], input=stdin, capture_output=True, text=True)


def wanted(row: Row, links: Sequence[str | Path]) -> tuple[str, str]:
    """The version of torch that a row gets, and why it is not installed here; nothing is downloaded."""
    torch = "torch" if row.torch == "newest" else f"torch=={row.torch}"
    resolve = ("pip", "compile", "--quiet", "--only-binary", "torch", "--python-version", row.python, *links, "-")
    resolved = uv(*resolve, stdin=torch)
    if resolved.returncode != 0:
        return row.torch, f"no wheel of torch {row.torch} for Python {row.python}"
    pinned = re.search(r"^torch==(\S+)", resolved.stdout, re.MULTILINE)
    assert pinned is not None
    cuda = len(_CUDA.findall(resolved.stdout))
    return pinned[1], f"the index has no CPU build for it; {cuda} CUDA packages would be installed" if cuda else ""


def tried(row: Row, wheel: Path, *, with_cuda: bool) -> Row:
    """A combination with what came of it, once its wheel is installed and tried."""
    links = ["--find-links", folder] if (folder := find_links()) else []
    torch, reason = wanted(row, links)
    row = replace(row, torch=torch)
    python = interpreter(row.python)
    if python is None:
        return replace(row, reason=f"there is no Python {row.python} here")
    version = subprocess.run([python, "-c", "import platform; print(platform.python_version())"], capture_output=True)
    row = replace(row, python=version.stdout.decode().strip())
    has_torch = not reason or (with_cuda and "CUDA" in reason)
    with tempfile.TemporaryDirectory() as there:
        place = Path(there)
        problem = _install(place, python, wheel, row if has_torch else replace(row, torch=""), links)
        if problem:
            return replace(row, standing="failed", reason=problem)
        trials = [trial for trial in TRIALS if has_torch or not trial.torch]
        (place / "folder").mkdir()
        row = _attempted(row, [place / "environment" / "bin" / "cemverify"], trials, place / "folder")
    return row if has_torch or row.standing == "failed" else replace(row, standing="without torch", reason=reason)


def of_debian(root: Path, wheel: Path) -> Row:
    """The Python and the torch of a Debian in a folder, in an environment with the wheel and what else it needs."""
    inside = ["chroot", str(root)]
    with tempfile.TemporaryDirectory(dir=root / "srv") as place:
        there = Path("/", Path(place).relative_to(root))
        shutil.copy(wheel, place)
        subprocess.run(
            [*inside, "python3", "-m", "venv", "--system-site-packages", there / "environment"], check=True
        )
        python = there / "environment" / "bin" / "python"
        install = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", f"{there / wheel.name}"]
        done = subprocess.run([*inside, python, *install], capture_output=True, text=True)
        code = "import platform, torch; print(platform.python_version(), torch.__version__)"
        versions = subprocess.run([*inside, python, "-c", code], capture_output=True, text=True, check=True)
        version, torch = versions.stdout.split()
        row = Row(version, torch)
        if done.returncode:
            return replace(row, standing="failed", reason=done.stderr.strip()[-400:])
        enter = f'cd {there} && exec {there}/environment/bin/cemverify "$@"'
        return _attempted(row, [*inside, "sh", "-c", enter, "cemverify"], TRIALS, Path(place))


def _attempted(row: Row, program: Sequence[str | Path], trials: Sequence[Trial], folder: Path) -> Row:
    """The row with what came of the trials."""
    outcomes = list(attempt(program, trials, folder))
    faults = [f"cemverify {o.trial.words}: {o.fault}" for o in outcomes if o.fault]
    seconds = sum(o.seconds for o in outcomes)
    standing = "failed" if faults else "passed"
    return replace(row, standing=standing, reason="; ".join(faults), trials=len(trials), seconds=seconds)


def _install(place: Path, python: str, wheel: Path, row: Row, links: Sequence[str | Path]) -> str:
    """Installs the wheel and what it needs, with the row's torch or without any; returns why it could not."""
    environment = place / "environment"
    pins = place / "pins.txt"
    pins.write_text(re.sub(r"^torch==.*$", "", CONSTRAINTS.read_text(), flags=re.MULTILINE))
    uv("venv", "--quiet", "--python", python, environment)
    chosen = ("--resolution", "lowest-direct") if row.oldest else ("--constraints", pins)
    needed = [word for word in _stated() if not word.startswith("torch>=")]
    torch = [f"torch=={row.torch}"] if row.torch else []
    install = ("pip", "install", "--quiet", "--python", environment, *links)
    done = uv(*install, *chosen, *needed, *torch)
    alone = uv(*install, "--no-deps", wheel)
    return (done.stderr + alone.stderr).strip()[-400:] if done.returncode or alone.returncode else ""


def as_markdown(rows: Sequence[Row], made: str) -> str:
    """The table, for the documentation."""
    lines = [made, "", "| Python | torch | outcome | |", "|---|---|---|---|"]
    for row in rows:
        outcome = f"{row.standing}, {row.trials} commands" if row.trials else row.standing
        torch = f"{row.torch}, the oldest of all" if row.oldest else row.torch
        lines.append(f"| {row.python} | {torch} | {outcome} | {row.reason} |")
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> int:
    """Tries every combination; see the module."""
    parser = argparse.ArgumentParser(
        prog="python -m suites.installation.matrix",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "matrix", metavar="DIR")
    parser.add_argument("--with-cuda", action="store_true", help="install torch with its CUDA packages if need be")
    parser.add_argument("--all", action="store_true", help="exit with 1 if anything could not be tried")
    parser.add_argument("--only", metavar="PYTHON", help="only this Python, such as 3.12")
    parser.add_argument("--debian", type=Path, metavar="FOLDER", help="only the Debian in this folder; as root")
    options = parser.parse_args(arguments)
    if shutil.which("uv") is None:
        print("uv is not installed: it says what would be downloaded, before it is; pip install uv", file=sys.stderr)
        return 2
    wheel = build(options.output)
    chosen = [row for row in combinations() if options.only in (None, row.python)]
    each = (tried(row, wheel, with_cuda=options.with_cuda) for row in chosen)
    rows = []
    for row in each if options.debian is None else [of_debian(options.debian, wheel)]:
        rows.append(row)
        print(f"Python {row.python:<8} torch {row.torch:<12} {row.standing}  {row.reason}", flush=True)
    made = f"{datetime.now(UTC):%Y-%m-%d}, {platform.system()} {platform.machine()}, {wheel.name}"
    (options.output / "matrix.json").write_text(
        json.dumps({"made": made, "rows": [asdict(r) for r in rows]}, indent=1)
    )
    (options.output / "matrix.md").write_text(as_markdown(rows, made))
    left = [row for row in rows if row.standing in ("without torch", "not tried")]
    if left:
        print(f"{len(left)} of {len(rows)} could not be tried in full: this run says nothing about them")
    return 1 if any(row.standing == "failed" for row in rows) or (options.all and left) else 0


if __name__ == "__main__":
    sys.exit(main())
