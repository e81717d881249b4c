"""Every file that commands read, damaged in every way: readers say so in a sentence, or read what is still sound.

Each row is a file and its reader: a command line, or a function called as its command calls it. A damaged file must
never lead to a traceback, a reader that does not return, or a half-written output.
"""

from __future__ import annotations

import contextlib
import copy
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load, save

from benchmarks import harvest
from cemverify.conformance.trained.activations import read_tokens
from cemverify.conformance.trained.checkpoint import load_weights
from cemverify.console.guard import enter
from cemverify.runs import CellStore
from cemverify.runs.exchange import bring
from cemverify.runs.plain import digest
from cemverify.runs.store import CorruptCell
from suites.entry import ground
from suites.entry.rule import complaint, work_is_told
from suites.kit.commands import call
from synthetic.training import checkpoints

# what a disk, a merge or an editor may leave in a file
_JUNK = (b"", b"\x00", b"\xff\xfe", b"\r\n", b'"', b"[", b"{", b"}", b"NaN", b'"\\ud800"', b"[" * 5000, b"9" * 5000)


@st.composite
def damaged_bytes(draw: st.DrawFn, sound: bytes) -> bytes:
    """The content truncated, or with a stretch replaced, or with some bytes changed."""
    at = draw(st.integers(0, max(len(sound) - 1, 0)))
    match draw(st.sampled_from(("truncated", "replaced", "changed"))):
        case "truncated":
            return sound[:at]
        case "replaced":
            junk = draw(st.sampled_from(_JUNK) | st.binary(max_size=20))
            return sound[:at] + junk + sound[at + draw(st.integers(0, 40)) :]
    changed = bytearray(sound)
    for _ in range(draw(st.integers(1, 4))):
        if changed:
            changed[draw(st.integers(0, len(changed) - 1))] = draw(st.integers(0, 255))
    return bytes(changed)


def _nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# values of every type, including extremes
_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(2**70), 10**400, 0.5, -1e308, float("nan"), float("inf")),
    *("", "x", "\ud800", "\x00", "../../x", "ταυ\n\u202e", "float64", "device", "nan", "9" * 5000, "x" * 5000),
    *([], {}, [None], [[]], {"x": None}, ["x"] * 300, _nested(50), _nested(200)),
)


@st.composite
def damaged_json(draw: st.DrawFn, sound: Any) -> bytes:
    """The content as JSON, with one to three values replaced, removed, duplicated or moved."""
    content = copy.deepcopy(sound)
    for _ in range(draw(st.integers(1, 3))):
        content = _with_damage(draw, content)
    return json.dumps(content).encode("utf-8", "surrogatepass")


def _with_damage(draw: st.DrawFn, content: Any) -> Any:
    """Walks down to a random place, and damages it."""
    keys = list(content) if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ()
    if not keys or draw(st.integers(0, 9)) == 0:
        return copy.deepcopy(draw(st.sampled_from(_VALUES)))
    key = draw(st.sampled_from(keys))
    match draw(st.integers(0, 9)):
        case 0:
            del content[key]
        case 1 if isinstance(content, dict):
            content["more"] = content.pop(key)
        case 1:
            content.append(copy.deepcopy(content[key]))
        case 2:
            content[key] = copy.deepcopy(content[draw(st.sampled_from(keys))])
        case _:
            content[key] = _with_damage(draw, content[key])
    return content


def with_digest(damaged: bytes) -> bytes:
    """The damaged content of a cell with a matching digest; NaN and surrogates have none."""
    content = json.loads(damaged)
    if isinstance(content, dict):
        content.pop("digest", None)
        with contextlib.suppress(ValueError, RecursionError):
            content["digest"] = digest(content)
    return json.dumps(content).encode("utf-8", "surrogatepass")


Damage = Callable[[bytes], st.SearchStrategy[bytes]]


def other_json(content: bytes, written: Callable[[bytes], bytes] = bytes) -> st.SearchStrategy[bytes]:
    """JSON with damaged values, or JSON lines with a damaged first line, as written to a file."""
    try:
        json.loads(content)
        first, rest = content, b""
    except ValueError:
        first, _, rest = content.partition(b"\n")
    return damaged_json(json.loads(first)).map(lambda damaged: written(damaged) + (b"\n" + rest if rest else b""))


def anyhow(content: bytes) -> st.SearchStrategy[bytes]:
    """Damaged bytes; for JSON also damaged values."""
    try:
        return damaged_bytes(content) | other_json(content)
    except ValueError:
        return damaged_bytes(content)


def with_fitting_digest(content: bytes) -> st.SearchStrategy[bytes]:
    """A cell with changed content and a matching digest."""
    return other_json(content, with_digest)


def facts_of(checkpoint: bytes) -> Any:
    """The facts about its tensors in the header of a checkpoint file."""
    header = json.loads(checkpoint[8 : 8 + int.from_bytes(checkpoint[:8], "little")])
    return json.loads(header["__metadata__"]["cemverify"])


def of_other_facts(content: bytes) -> st.SearchStrategy[bytes]:
    """Checkpoints with the same tensors and changed facts."""
    facts = damaged_json(facts_of(content))
    return facts.map(lambda damaged: save(load(content), {"cemverify": damaged.decode("utf-8", "replace")}))


@dataclass(frozen=True)
class Row:
    """A file and its reader."""

    file: str  # a file pattern in the folder
    read: str | Callable[[Path], object]  # a command line, which may write `new`, or a function of the file
    damage: Damage = anyhow


def _restore(path: Path) -> None:
    checkpoints.restore(path, *ground.a_model(), ground.FACTS)


def _read_cell(path: Path, *, forged: bool = False) -> None:
    """Reads a cell like a study, which computes a damaged one again; content with a forged digest may be any."""
    with contextlib.suppress(CorruptCell):
        record = CellStore(path.parents[1]).get(path.stem)
        assert forged or record is None or record.payload == {"end": 1.0}


FOUND, CELL = "found/gradient-mlp-silu", "store/??/*.json"
ROWS = (
    Row("r.json", "reports tables r.json --output new"),
    Row("r.json", "reports page r.json -o new"),
    Row("check.json", "reports compare check.json check.json --json new"),
    Row("check.json", "reports page check.json -o new"),
    Row("check.json", "cemverify check right:mine --baseline check.json --json new"),
    Row("known.toml", "cemverify check right:mine --known known.toml --markdown new"),
    Row(f"{FOUND}.json", f"cemverify replay {FOUND}.json --json new"),
    Row(f"{FOUND}.npz", f"cemverify replay {FOUND}.json"),
    Row("benchmarks.json", "benchmarks --report benchmarks.json --page new"),
    Row("benchmarks.json", "reports pictures benchmarks.json --output new"),
    Row("recursion.json", "reports pictures recursion.json --output new"),
    Row("recursion.json", "reports page recursion.json -o new"),
    Row("power.json", "reports page power.json -o new"),
    Row("results/second-step-mlp.json", "cemverify claims 15-matched-mlp --results results --json new"),
    Row("w.safetensors", lambda path: load_weights(torch.nn.Linear(2, 3), path)),
    Row("tokens.npy", read_tokens),
    Row(CELL, _read_cell),
    Row(CELL, partial(_read_cell, forged=True), with_fitting_digest),
    Row("store/??/*.made_by", lambda path: _read_cell(path.with_suffix(".json"))),
    Row("some.cells.jsonl", lambda path: bring(path, CellStore(Path("new")))),
    Row("some.cells.jsonl", lambda path: bring(path, CellStore(Path("new"))), with_fitting_digest),
    Row("corpora/*/corpus.json", lambda path: ground.open_corpus(path.parents[2])),
    Row("corpora/*/train.tokens", lambda path: ground.open_corpus(path.parents[2])),
    Row("checkpoint.safetensors", _restore),
    Row("checkpoint.safetensors", _restore, of_other_facts),
    Row("gpu/stage-*.json", lambda path: harvest.page(harvest.compose(path.parent, ground.MAKER), "command")),
)


@pytest.fixture(autouse=True)
def judged_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs no implementation: `check` and `replay` read their files, and get ready-made verdicts."""
    work_is_told(monkeypatch)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder with the files to read."""
    made = tmp_path_factory.mktemp("ground")
    ground.make(made)
    return made


def said(row: Row, path: Path) -> str:
    """The sentence about a file that cannot be read; "" if it can."""
    read = row.read
    if isinstance(read, str):
        return complaint(lambda: call(read.split()))
    return complaint(lambda: enter(lambda _: lambda: 0 * bool(read(path)), []))


def remove(path: Path) -> bool:
    """Removes a file or folder; returns whether there was one."""
    there = path.exists()
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    return there


# drawing takes seconds
DRAWS = ("reports page recursion", "reports page power", "reports pictures", "benchmarks --report")


@pytest.mark.parametrize(
    "row",
    [
        pytest.param(row, marks=[pytest.mark.thorough] * str(row.read).startswith(DRAWS), id=f"{number}-{row.file}")
        for number, row in enumerate(ROWS)
    ],
)
def test_a_sound_file_is_read_and_a_damaged_one_refused_in_a_sentence(
    row: Row, folder: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    monkeypatch.chdir(folder)
    path = next(Path().glob(row.file)).absolute()
    before = {file: file.read_bytes() for file in folder.rglob("*") if file.is_file()}
    writes = isinstance(row.read, str) and row.read.endswith(" new")
    assert said(row, path) == ""
    assert remove(Path("new")) >= writes

    @settings(max_examples=1000 if request.config.getoption("--thorough") else 25)
    @given(row.damage(before[path]))
    def ask(damaged: bytes) -> None:
        path.write_bytes(damaged)
        refused = said(row, path)
        written = remove(Path("new"))
        assert not (writes and refused and written), "half written"
        assert refused or written or not writes or "pictures" in str(row.read)  # there may be nothing to draw

    try:
        ask()
    finally:
        path.write_bytes(before[path])
    assert {file: file.read_bytes() for file in before} == before


# entries that once led to a traceback, put into a result, or into every array of a counterexample
ODD: tuple[tuple[str, dict[str, Any]], ...] = (
    ("benchmarks.json", {"load": [0.5]}),
    ("benchmarks.json", {"load": None}),
    ("benchmarks.json", {"benchmarks": 1.5}),
    ("benchmarks.json", {"benchmarks": {"attention": {"rows": [{}]}}}),
    *((f"{FOUND}.json", {"strides": [s] * 3}) for s in (-1, 0, 10**12, 10**400, "x", True)),
    *((f"{FOUND}.json", {"dtype": name}) for name in ("qint8", "quint4x2", "bits8", "float8_e4m3fn", "load", "nn")),
)


@pytest.mark.parametrize(("file", "odd"), ODD, ids=str)
def test_a_file_with_odd_entries_is_read_or_refused_in_a_sentence(
    file: str, odd: dict[str, Any], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    sound = Path(file).read_text()
    has_place = "load" if file == "benchmarks.json" else "array"
    hook = lambda node: node | odd if has_place in node else node  # noqa: E731
    Path(file).write_text(json.dumps(json.loads(sound, object_hook=hook)))
    refused = said(next(row for row in ROWS if row.file == file), Path(file))
    Path(file).write_text(sound)
    assert remove(Path("new")) == (not refused)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda tensors: {name: tensor[..., :1].clone() for name, tensor in tensors.items()}, "has shape"),
        (lambda tensors: {name: tensor.bool() for name, tensor in tensors.items()}, "has shape"),
        (lambda tensors: dict(list(tensors.items())[1:]), "is missing"),
    ],
)
def test_a_checkpoint_of_other_tensors_is_refused_in_a_sentence(
    change: Callable[[Any], dict[str, torch.Tensor]], words: str, folder: Path, tmp_path: Path
) -> None:
    path = tmp_path / "checkpoint.safetensors"
    sound = (folder / path.name).read_bytes()
    path.write_bytes(save(change(load(sound)), {"cemverify": json.dumps(facts_of(sound))}))
    assert words in said(Row("", _restore), path)
