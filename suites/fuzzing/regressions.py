"""What broke the rule once: each row is an abuse that it has to survive since."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from cemverify.runs import Cell
from cemverify.runs.store import content_of, digest_of
from suites.fuzzing.abuses import Abuse

_CHECK = "cemverify check right:mine"
_COUNTEREXAMPLE = "found/gradient-mlp-silu"
_REPLAY = f"cemverify replay {_COUNTEREXAMPLE}.json"
_QUICK_CHECK = f"{_CHECK} --properties gradient/mlp/silu --examples 5 --workers 1"
_POWER = "cemverify power right:mine --store new --workers 1 --json new.json"

# A command line, and what is put beside the sound files.
_LINES: tuple[tuple[str, Mapping[str, str]], ...] = (
    # a link to a folder that is not there yet
    ("benchmarks gpu --report --folder link", {"link": "-> new-too"}),
    # an output was replaced by a file, whatever it was
    *((f"{_CHECK} --{kind} link", {"link": "-> /proc/self/fd/1"}) for kind in ("json", "markdown", "junit")),
    (f"{_CHECK} --json loop", {"loop": "-> loop"}),
    (f"{_CHECK} --json link", {"link": "-> fifo", "fifo": "fifo"}),
    (f"{_CHECK} --json /dev/full", {}),
    ("synthetic language scale second-step-mlp.json --page link", {"link": "-> /dev/null"}),
    # an input was overwritten
    *((f"cemverify check right:mine --{kind} right.py", {}) for kind in ("json", "junit", "markdown")),
    ("cemverify check right.py:mine --json right.py", {}),
    ("cemverify check package.layer:mine --markdown package/layer.py", {}),
    (f"{_CHECK} --known known.toml --json known.toml", {}),
    # what may be a file or a name elsewhere was looked for as a file, whose name was too long
    (f"synthetic language fixed-memory --tokeniser {'x' * 300}", {}),
    (f"synthetic language fixed-memory --dataset {'x' * 300}", {}),
    # a module of 2^38 bytes was read whole
    ("cemverify check odd.py:mine", {"odd.py": "sparse"}),
    ("cemverify repair odd.py:mine", {"odd.py": "sparse"}),
    (f"{_CHECK} --baseline check.json --json check.json", {}),
    *((f"{_REPLAY} --json {_COUNTEREXAMPLE}{suffix}", {}) for suffix in (".json", ".npz", ".py")),
    (f"{_CHECK} --save-counterexamples found --json found/../{_COUNTEREXAMPLE}.json", {}),
    ("reports page . -o check.json", {}),
    ("reports page check.json -o link", {"link": "-> check.json"}),
    ("reports compare r.json r.json --json found/../r.json", {}),
    ("reports compare r.json r.json --json other.json", {"other.json": "= r.json"}),
    ("benchmarks --report benchmarks.json --page benchmarks.json", {}),
    ("cemverify claims 15-matched-mlp --results results --json results/second-step-mlp.json", {}),
    # something unforeseen, or only after the work
    (f"{_CHECK} --json x/y.json --markdown x", {}),
    *((f"{_CHECK} --{kind} {'x' * 300}", {}) for kind in ("json", "junit", "markdown")),
    *((f"{_CHECK} --{kind} {'x/' * 2000}x", {}) for kind in ("json", "junit", "markdown")),
    (f"cemverify init --no-check --name {'x' * 300}", {}),
    (f"cemverify init --no-check --folder {'x' * 300}", {}),
    ("cemverify power --no-bank --bank nothing", {}),
    ("synthetic language train --folder loop", {"loop": "-> loop"}),
    ("cemverify replay .", {}),
    # blocked, or read towards all memory
    *(
        (line, {"odd": f"-> {odd}" if "/" in odd else odd})
        for odd in ("/dev/zero", "/dev/urandom", "fifo", "sparse")
        for line in (f"{_CHECK} --baseline odd", f"{_CHECK} --known odd", "reports tables odd", "reports page odd")
    ),
    # a wait of 180 seconds for each property
    *((f"{_CHECK} --{name} {value}", {}) for name in ("timeout", "seconds") for value in ("1e10", "nan", "-1", "0")),
    # the library maps a file of tensors before it looks at it
    ("cemverify check model:build --checkpoint odd.safetensors --layer 0", {"odd.safetensors": "sparse"}),
)  # fmt: skip

# A signal, and the seconds after which it was lost, or its command did not end. It comes at other instants on other
# machines; `suites/entry/test_ends.py` has what was wrong.
_SIGNALLED = (
    ("SIGTERM", 0.195, f"{_QUICK_CHECK} --watch"),
    ("SIGHUP", 0.27, f"{_QUICK_CHECK} --watch"),
    ("SIGQUIT", 0.012, f"{_QUICK_CHECK} --watch"),
    ("SIGHUP", 0.042, f"{_POWER} --examples 4"),
    ("SIGQUIT", 0.226, f"{_POWER} --examples 4"),
)

# An empty word is one that `str.split` does not make.
_EMPTY = (
    ("cemverify", "replay", ""),
    ("cemverify", "power", "--store", ""),
    ("synthetic", "recursion", "--store", ""),
    ("cemverify", "init", "--folder", ""),
    ("synthetic", "language", "train", "--text", ""),
    ("cemverify", "check", "right:mine", "--json", ""),
)
# The name of an output goes to a terminal.
_NAME = "\x1b[2J\u202e\n\x07.json"
_NAMED = (
    "cemverify check right:mine --save-counterexamples",
    "cemverify claims 15-matched-mlp --markdown",
    "cemverify init --no-check --folder",
    "reports tables r.json --output",
    "benchmarks --report benchmarks.json --page",
    "synthetic language scale second-step-mlp.json --page",
)


def regressions(ground: Path) -> Iterator[Abuse]:
    """The commands that once went wrong, each as an abuse on that ground."""
    for line, made in _LINES:
        yield Abuse("regressions", tuple(line.split()), made=made)
    for words in _EMPTY:
        yield Abuse("regressions", words)
    yield from (Abuse("regressions", (*line.split(), _NAME)) for line in _NAMED)
    # an import that stops its process was waited for as long as an import may take
    stops = b"import os, signal\nos.kill(os.getpid(), signal.SIGSTOP)\n".hex()
    yield Abuse("regressions", ("cemverify", "check", "stops:mine"), files={"stops.py": stops}, real=True, wrong=True)
    for files in (8, 12, 16):
        yield Abuse("regressions", tuple(_CHECK.split()), limits={"files": files})
    # no descriptor was left, not even to leave stderr
    words = ("reports", "pictures", "benchmarks.json", "--output", "new")
    yield Abuse("regressions", words, limits={"files": 8}, streams=("closed", "full"))
    for name, seconds, line in _SIGNALLED:
        number = int(signal.Signals[name])
        yield Abuse("regressions", tuple(line.split()), signals=(number, seconds), real=True)
    yield from _incomplete_benchmarks(ground)
    yield from _forged_cells()
    yield from _odd_counterexamples(ground)


def _incomplete_benchmarks(ground: Path) -> Iterator[Abuse]:
    """Results that the schema allows, and that lack what their page says."""
    sound = json.loads((ground / "benchmarks.json").read_text())
    odd: list[dict[str, Any]] = [{"load": [0.5]}, {"load": None}, {"benchmarks": 1.5}]
    odd += [{"benchmarks": {"attention": {"rows": [{}]}}}, {"benchmarks": {"attention": {}}}]
    damaged = [sound | each for each in odd] + [{name: of for name, of in sound.items() if name != "benchmarks"}]
    words = ("benchmarks", "--report", "benchmarks.json", "--page", "new.md")
    for content in damaged:
        yield Abuse("regressions", words, files={"benchmarks.json": _hex(json.dumps(content))})


def _forged_cells() -> Iterator[Abuse]:
    sound: dict[str, Any] = content_of(Cell("walk", {"walk": 1}, {"seed": 0}), {"end": 1.0})
    lines: list[Any] = [sound | {"algorithm": 5}, {name: value for name, value in sound.items() if name != "payload"}]
    forged = [json.dumps({**line, "digest": digest_of(line)}) for line in lines]
    for text in ("[" * 200_000, *forged):
        yield Abuse("regressions", ("read", "cells", "some.cells.jsonl"), files={"some.cells.jsonl": _hex(text)})


def _odd_counterexamples(ground: Path) -> Iterator[Abuse]:
    """Arrays that are laid out or typed as none ever was."""
    text = (ground / f"{_COUNTEREXAMPLE}.json").read_text()

    def with_array(**odd: Any) -> Callable[[dict[str, Any]], dict[str, Any]]:
        return lambda node: {**node, **odd} if "array" in node else node

    odd: list[dict[str, Any]] = [{"strides": [-1, -1, -1]}, {"strides": [10**12] * 3}, {"strides": [10**400] * 3}]
    odd += [{"strides": [0, 0, 0]}, {"strides": ["x"]}, {"strides": [True, True, True]}]
    odd += [{"dtype": name} for name in ("qint8", "quint4x2", "bits8", "float8_e4m3fn", "load", "int8", "nn")]
    for each in odd:
        content = json.dumps(json.loads(text, object_hook=with_array(**each)))
        yield Abuse("regressions", tuple(_REPLAY.split()), files={f"{_COUNTEREXAMPLE}.json": _hex(content)})


def _hex(text: str) -> str:
    return text.encode().hex()
