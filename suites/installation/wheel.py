"""`python -m suites.installation.wheel`: builds the wheel from the sdist, and uses it alone.

The wheel is installed into an empty environment, and tried there in an empty folder; then uv and pipx run it without
an installation, as `uvx` and `pipx run` do. Exit code 0 if everything went as it should, 1 if not.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from suites.installation.trials import FIRST_STEPS, Outcome, Trial, attempt

ROOT = Path(__file__).parents[2]
CONSTRAINTS = ROOT / "constraints.txt"

# What comes with the code and is not code.
DATA = (
    "cemverify/py.typed",
    "cemverify/catalogue/listing.jsonl",
    "cemverify/results/result.schema.json",
)

ONE = (
    Trial("--version", "cemverify ", torch=False),
    Trial("check reference --properties gradient/attention/plain --examples 10", "1 run: 1 hold"),
)


def build(into: Path) -> Path:
    """Builds the sdist, and the wheel from the sdist; returns the wheel."""
    shutil.rmtree(into, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "build", "--outdir", into, ROOT], check=True, stdout=subprocess.DEVNULL)
    (wheel,) = into.glob("*.whl")
    return wheel


def strangers(wheel: Path) -> list[str]:
    """What the wheel should not hold, and what it lacks."""
    names = set(zipfile.ZipFile(wheel).namelist())
    due = {*DATA, *(str(path.relative_to(ROOT)) for path in (ROOT / "cemverify").rglob("*.py"))}
    about = {name for name in names if ".dist-info/" in name}
    foreign = [f"{name} does not belong there" for name in sorted(names - due - about)]
    return [*foreign, *(f"{name} is missing" for name in sorted(due - names))]


def install(wheel: Path, python: str, folder: Path, *arguments: str) -> Path:
    """Makes an empty environment with the wheel in it; returns where its programs are.

    Raises:
        CalledProcessError: pip could not install it.
    """
    if python == sys.executable:
        venv.create(folder, with_pip=True)
    else:
        subprocess.run([python, "-m", "venv", folder], check=True)
    programs = folder / ("Scripts" if sys.platform == "win32" else "bin")
    pip: list[str | Path] = [programs / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, *arguments, wheel], check=True, capture_output=True, text=True)
    return programs


def without_installing(wheel: Path) -> Iterator[tuple[str, list[str | Path]]]:
    """The programs that run a wheel as it is: uv and pipx, of those that there are."""
    if uv := shutil.which("uv"):
        local = ["--find-links", links] if (links := find_links()) else []
        yield (
            "uvx",
            [uv, "tool", "run", "--quiet", "--constraints", CONSTRAINTS, *local, "--from", wheel, "cemverify"],
        )
    if pipx := shutil.which("pipx"):
        yield "pipx run", [pipx, "run", "--spec", wheel, "--pip-args", f"--constraint {CONSTRAINTS}", "cemverify"]


def find_links() -> str | None:
    """A folder of wheels that pip is told of, for uv, which does not read the settings of pip."""
    said = subprocess.run(
        [sys.executable, "-m", "pip", "config", "get", "global.find-links"], capture_output=True, text=True
    )
    return said.stdout.strip() or None


def report(heading: str, outcomes: Iterator[Outcome]) -> bool:
    """Prints each outcome as it comes; returns whether all went as they should."""
    print(f"\n{heading}", flush=True)
    good = True
    for outcome in outcomes:
        print(f"  {'FAILED' if outcome.fault else 'ok':<7}{outcome.seconds:6.1f} s  cemverify {outcome.trial.words}")
        if outcome.fault:
            good = False
            print(f"          {outcome.fault}")
    return good


def main(arguments: Sequence[str] | None = None) -> int:
    """Builds, installs, tries; see the module."""
    parser = argparse.ArgumentParser(prog="python -m suites.installation.wheel", description=__doc__)
    parser.add_argument(
        "--output", type=Path, default=ROOT / "out" / "dist", metavar="DIR", help="where they are left"
    )
    options = parser.parse_args(arguments)
    wheel = build(options.output)
    print(f"built {wheel} ({wheel.stat().st_size / 1e6:.2f} MB)")
    faults = strangers(wheel)
    print("".join(f"  {fault}\n" for fault in faults), end="")
    good = not faults
    with tempfile.TemporaryDirectory() as there:
        started = time.monotonic()
        programs = install(wheel, sys.executable, Path(there) / "environment", "--constraint", str(CONSTRAINTS))
        print(f"installed into an empty environment in {time.monotonic() - started:.0f} s")
        folder = Path(there) / "folder"
        folder.mkdir()
        good &= report("the wheel alone", attempt([programs / "cemverify"], FIRST_STEPS, folder))
        for name, program in without_installing(wheel):
            good &= report(name, attempt(program, ONE, folder))
    for name in ("uv", "pipx"):
        if shutil.which(name) is None:
            print(f"\nNOT TRIED: {name} is not installed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
