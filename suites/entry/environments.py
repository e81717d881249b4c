"""Commands in odd environments: one process imports everything, and a fork of it runs each command in its own.

    python -m suites.entry.environments FOLDER [stripped]     rows as JSON on stdin, exit codes as JSON on stdout

`stripped` compiles our own modules as `python -OO` does, without docstrings and asserts. Under -OO itself every
library is compiled, too, which takes longer than all the rest where nothing is cached.

What a row prints is in FOLDER/NUMBER.stdout and FOLDER/NUMBER.stderr.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Environment:
    """What a command finds.

    Attributes:
        words: the command line, the program first.
        stdout, stderr: "open", "full" (a disk that takes no more) or "closed". encoding: of both.
        folder: the current one: "usual", "read-only" or "deleted". columns: of the terminal; 0: not said.
        home: whether there is one.
    """

    words: tuple[str, ...]
    stdout: str
    stderr: str
    encoding: str
    folder: str
    columns: int
    home: bool


@dataclass(frozen=True)
class Interpreter:
    """How the process is started that imports everything.

    Attributes:
        flags: of Python. variables: of its environment. stripped: whether our own modules have no docstrings.
    """

    flags: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    stripped: bool = False


def run(environments: Sequence[Environment], folder: Path, interpreter: Interpreter) -> list[int]:
    """The exit codes of commands, each run by a fork of that interpreter."""
    import subprocess

    done = subprocess.run(
        [
            sys.executable,
            *interpreter.flags,
            "-m",
            __name__,
            str(folder),
            *(("stripped",) if interpreter.stripped else ()),
        ],
        input=json.dumps([asdict(environment) for environment in environments]),
        env={**os.environ, **interpreter.variables},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


class _Stripped(SourceFileLoader):
    """Compiles without docstrings and asserts, and leaves compiled files alone."""

    def path_stats(self, path: Any) -> Mapping[str, Any]:
        raise OSError("no compiled file belongs to this")

    def source_to_code(self, data: Any, path: Any, *, _optimize: int = -1) -> Any:  # type: ignore[override]
        return super().source_to_code(data, path, _optimize=2)


class Stripping:
    """Finds our own modules, to be stripped."""

    @staticmethod
    def find_spec(name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Where one of our own modules is, to be loaded without its docstrings; None for all others."""
        if name.partition(".")[0] not in ("cemverify", "synthetic", "reports"):
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, SourceFileLoader):
            spec.loader = _Stripped(spec.loader.name, spec.loader.path)
        return spec


def _commands() -> Mapping[str, Callable[[Sequence[str]], int]]:
    import sklearn.ensemble  # noqa: F401 (which references import as they are fitted)
    import torch._dynamo  # noqa: F401 (which optimisers import)

    import cemverify.api
    import cemverify.claims.pages
    import cemverify.commands.property_page
    import cemverify.conformance.counterexamples.files
    import cemverify.conformance.trained.records
    import cemverify.power.measuring
    import cemverify.power.pages
    import reports.__main__
    import synthetic.__main__
    import synthetic.examine
    import synthetic.gp.oracle
    import synthetic.language.train
    import synthetic.studies.recursion.command

    return {
        "cemverify": cemverify.cli.main,
        "reports": reports.__main__.main,
        "synthetic": synthetic.__main__.main,
    }


def _judge_here() -> None:
    """Asks implementations in this process: what workers are is not what is tried here."""
    from cemverify.conformance.implementations.contract import kind_of, load
    from cemverify.conformance.judging import engine
    from cemverify.conformance.workers import isolation

    def asked(name: str, properties: Any, effort: Any, *_: int, **__: bool) -> Iterator[Any]:
        return engine.run(load(name), name, engine.applicable(kind_of(load(name)), properties), effort)

    isolation.run = asked  # type: ignore[assignment]


def replace_stream(name: str, number: int, how: str, path: Path, encoding: str) -> None:
    """Puts a file, a full disk or nothing in the place of stdout or stderr."""
    if how == "closed":
        os.close(number)
        setattr(sys, name, None)
        return
    opened = os.open("/dev/full" if how == "full" else path, os.O_WRONLY | os.O_CREAT, 0o644)
    os.dup2(opened, number)
    os.close(opened)
    errors = "backslashreplace" if name == "stderr" else "strict"  # as Python's own
    setattr(sys, name, io.TextIOWrapper(io.FileIO(number, "w"), encoding, errors, write_through=False))


def _go_to(folder: str, own: Path) -> None:
    if folder == "read-only":
        os.chdir("/proc")  # for root, too
    else:
        own.mkdir()
        os.chdir(own)
        if folder == "deleted":
            own.rmdir()


def _run_one(main: Callable[[Sequence[str]], int], environment: Environment, own: Path) -> int:
    _go_to(environment.folder, own)
    os.environ.pop("COLUMNS", None)
    if environment.columns:
        os.environ["COLUMNS"] = str(environment.columns)
    if not environment.home:
        os.environ.pop("HOME", None)
    # stderr first: where stdout is closed, its number is the next that is free
    for name, number, how in (("stderr", 2, environment.stderr), ("stdout", 1, environment.stdout)):
        replace_stream(name, number, how, own.with_suffix(f".{name}"), environment.encoding)
    code = main(environment.words[1:])
    for stream in (sys.stdout, sys.stderr):  # as at the end of the interpreter, which complains with exit code 120
        try:
            if stream is not None:
                stream.flush()
        except OSError:
            return 120
    return code


def main() -> None:
    """Runs every environment of the table and prints what came of each; returns the exit code."""
    folder = Path(sys.argv[1])
    if "stripped" in sys.argv[2:]:
        sys.meta_path.insert(0, Stripping)
    rows = [Environment(**{**row, "words": tuple(row["words"])}) for row in json.load(sys.stdin)]
    # first what all need, with warnings as the interpreter was asked to treat them
    import cemverify.cli

    if cemverify.cli.main(["list"]):  # -OO removes what is asserted
        sys.exit(1)
    mains = _commands()
    _judge_here()
    codes = []
    for number, row in enumerate(rows):
        if (child := os.fork()) == 0:
            code = 99
            try:
                code = _run_one(mains[row.words[0]], row, folder / str(number))
            finally:
                os._exit(code)
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes))


if __name__ == "__main__":
    main()
