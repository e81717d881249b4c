"""Every file that is read, damaged in every way: its reader says so in a sentence, or reads what is still sound.

Each row is a reader, called as its command calls it. A damaged file may never end in a traceback, in a reader that
does not come back, or in an output that is half written.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load, save, save_file

from benchmarks import harvest
from cemverify.cem.layers import MLPConfig
from cemverify.cem.models import LanguageModel
from cemverify.conformance.counterexamples.files import save_all
from cemverify.conformance.judging.events import RunFinished
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.listeners.files import as_json
from cemverify.conformance.properties import select
from cemverify.conformance.questions.cases import dense_case
from cemverify.conformance.questions.saving import Packing, Saved, restored
from cemverify.conformance.trained.activations import read_tokens
from cemverify.conformance.trained.checkpoint import load_weights
from cemverify.conformance.workers import isolation
from cemverify.console.guard import enter
from cemverify.results.envelope import Table, result, write
from cemverify.results.provenance import Maker
from cemverify.runs import CellStore
from cemverify.runs.store import CorruptCell
from suites.entry.damage import damaged_bytes, damaged_json, with_digest
from suites.kit.commands import call
from suites.runs.light import walks
from synthetic.corpora import sources
from synthetic.corpora.corpus import tokenised
from synthetic.corpora.tokenisers import Symbols
from synthetic.studies.side_by_side.rows import contenders
from synthetic.training import checkpoints
from synthetic.training.metrics import Metrics
from synthetic.training.recipe import Recipe
from synthetic.training.training import adamw

SECONDS = 30  # within which every reader is done, on a busy machine too
PROPERTIES = ("gradient/mlp/silu", "gradient/attention/plain")

KNOWN_VIOLATIONS = "\n".join(
    f"""[[violation]]
implementation = "cemverify:reference"  # a comment
property = "{name}"
cause = "update*"
reason = "because"
expires = 2027-02-19
"""
    for name in PROPERTIES
)


@dataclass(frozen=True)
class Reader:
    """A file and who reads it."""

    make: Callable[[Path], Path]  # writes a sound file into a folder, with what belongs beside it; returns its path
    read: Callable[[Path], object]  # reads it, as a command does; returns an exit code, or what was read


def _maker() -> Maker:
    return Maker.now(
        "cemverify check cemverify:reference", {"properties": [], "examples": 60, "dtype": "float64"}, 0, "cpu"
    )


def _records() -> list[Record]:
    violated = Record(PROPERTIES[1], "", "", Verdict.VIOLATED, margin=7.0, cause="update = -eta P grad", reason="r")
    return [Record(PROPERTIES[0], "", "", Verdict.HOLDS, margin=0.1), violated]


def _a_result(folder: Path) -> Path:
    tables = [Table("t", ["a", "b"], [["x", 1.5], [None, True]])]
    write(folder / "r.json", result("atlas", _maker(), tables, {"payload": {"deep": [1, 2]}}))
    return folder / "r.json"


def _a_check(folder: Path) -> Path:
    write(folder / "check.json", as_json(RunFinished("cemverify:reference", _records(), 1.0), _maker()))
    return folder / "check.json"


def _known_violations(folder: Path) -> Path:
    (folder / "known.toml").write_text(KNOWN_VIOLATIONS)
    return folder / "known.toml"


def _counterexample(folder: Path) -> Path:
    (property_,) = select(["gradient/mlp/silu"])
    case = dense_case(MLPConfig(2, 3), batch=1, tokens=2, seed=0)
    packing = Packing()
    saved = Saved(packing.tree(case), "float64", "cpu", "torch", packing.arrays, [], within=5.0)
    record = replace(_records()[1], id=property_.id, saved=saved)
    (path,) = save_all(RunFinished("cemverify:reference", [record], 0.0), folder, _maker())
    return path


def _cell(folder: Path) -> Path:
    store, cell = CellStore(folder), walks(1)[0]
    store.put(cell, {"end": 1.0}, {"label": "walk", "created": "today", "host": "h", "machine": "m", "seconds": 1.0})
    return store.path(cell.key)


def _corpus(folder: Path) -> Path:
    (folder / "one.txt").write_text("words of a corpus, one after another\n" * 9)
    _open_corpus(folder)
    return next(folder.glob("corpora/*/corpus.json"))


def _open_corpus(folder: Path) -> None:
    tokenised(sources.text_files([folder / "one.txt"]), Symbols(), folder / "corpora")


def _a_model() -> tuple[LanguageModel, torch.optim.Optimizer]:
    small = contenders(vocabulary=4, dim=4, layers=1, heads=1, depths=(1,))[0]
    model = LanguageModel(small.model, torch.Generator().manual_seed(0))
    return model, adamw(model, Recipe(steps=2, batch=1, context=4))


def _checkpoint(folder: Path) -> Path:
    model, optimiser = _a_model()
    for parameter in model.parameters():
        zeros = torch.zeros_like(parameter)
        optimiser.state[parameter] = {"step": torch.tensor(1.0), "exp_avg": zeros, "exp_avg_sq": zeros.clone()}
    path, state = folder / "checkpoint.safetensors", checkpoints.TrainingState(1, (2.0,), "digest")
    checkpoints.save(path, model, optimiser, state, {"vocabulary": 4, "steps": 2}, writes=True)
    return path


def _restore(path: Path) -> None:
    checkpoints.saved_step(path)
    checkpoints.restore(path, *_a_model(), {"vocabulary": 4, "steps": 2})


def _weights(folder: Path) -> Path:
    save_file({"weight": torch.ones(3, 2), "bias": torch.zeros(3)}, folder / "w.safetensors")
    return folder / "w.safetensors"


def _tokens(folder: Path) -> Path:
    np.save(folder / "tokens.npy", np.arange(6).reshape(2, 3))
    return folder / "tokens.npy"


def _metrics(folder: Path) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": i, "bits": 2.5, "seconds": 1.0}) + "\n" for i in range(5)))
    return path


def _stage(folder: Path) -> Path:
    device = {"type": "cpu", "name": "n", "system": "s", "threads": 1}
    tables = [{"title": "t", "columns": ["a"], "rows": [["1"]]}]
    content = {
        "stage": harvest.STAGES[0].name,
        "finished": True,
        "device": device,
        "versions": {"python": "3", "torch": "2"},
    }
    content |= {"created": "today", "seconds": 1.5, "skipped": None, "tables": tables, "data": {}}
    write(folder / f"stage-{harvest.STAGES[0].name}.json", content)
    return folder / f"stage-{harvest.STAGES[0].name}.json"


def _read_cell(path: Path) -> None:
    """As a study does, for which a damaged cell is one to compute again."""
    with contextlib.suppress(CorruptCell):
        record = CellStore(path.parents[1]).get(path.stem)
        assert record is None or record.payload == {"end": 1.0}


def _read_forged_cell(path: Path) -> None:
    """The same of a cell whose digest was made to fit: what it says is as good as any other result."""
    with contextlib.suppress(CorruptCell):
        CellStore(path.parents[1]).get(path.stem)


def _report(path: Path) -> int:
    output = path.parent / "report"
    code = call(["reports", "tables", str(path), "--output", str(output)])
    assert output.exists() == (code == 0), "half written"
    shutil.rmtree(output, ignore_errors=True)
    return code


READERS = {
    "result": Reader(_a_result, _report),
    "compared result": Reader(
        _a_check, lambda path: call(["reports", "compare", str(path), str(_a_check(path.parents[1]))])
    ),
    "baseline": Reader(
        _a_check, lambda path: call(["cemverify", "check", "cemverify:reference", "--baseline", str(path)])
    ),
    "known violations": Reader(
        _known_violations, lambda path: call(["cemverify", "check", "cemverify:reference", "--known", str(path)])
    ),
    "counterexample": Reader(_counterexample, lambda path: call(["cemverify", "replay", str(path)])),
    "arrays of a counterexample": Reader(
        lambda folder: _counterexample(folder).with_suffix(".npz"),
        lambda path: call(["cemverify", "replay", str(path.with_suffix(".json"))]),
    ),
    "cell": Reader(_cell, _read_cell),
    "side file of a cell": Reader(
        lambda folder: _cell(folder).with_suffix(".made_by"), lambda path: _read_cell(path.with_suffix(".json"))
    ),
    "corpus": Reader(_corpus, lambda path: _open_corpus(path.parents[2])),
    "tokens": Reader(
        lambda folder: next(_corpus(folder).parent.glob("train.tokens")), lambda path: _open_corpus(path.parents[2])
    ),
    "checkpoint": Reader(_checkpoint, _restore),
    "stage of a benchmark": Reader(
        _stage, lambda path: harvest.page(harvest.compose(path.parent, _maker()), "command")
    ),
    "weights of a trained model": Reader(_weights, lambda path: load_weights(torch.nn.Linear(2, 3), path)),
    "tokens for a trained model": Reader(_tokens, lambda path: read_tokens(path)),
    "metrics": Reader(_metrics, lambda path: Metrics(path, after=3).close()),
}
# those that are JSON, and so can be damaged in their meaning
JSON = (
    "result", "compared result", "baseline", "counterexample", "cell", "side file of a cell", "corpus",
    "stage of a benchmark",
)  # fmt: skip


@pytest.fixture(autouse=True)
def judged_already(monkeypatch: pytest.MonkeyPatch) -> None:
    """No implementation is asked: `check` and `replay` read their files, and get these verdicts."""

    def run(name: str, *_: Any, **__: Any) -> Iterator[RunFinished]:
        yield RunFinished(name, _records(), 1.0)

    def ask_again(name: str, property_: Any, question: Any, *_: Any, **__: Any) -> Record:
        packing = Packing()
        restored(packing.tree(question), packing.arrays)  # as it goes to the worker
        return _records()[0]

    monkeypatch.setattr(isolation, "run", run)
    monkeypatch.setattr(isolation, "ask_again", ask_again)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, bytes]]:
    """Each file, whole: where it lies and what it holds."""
    made = {name: reader.make(tmp_path_factory.mktemp("sound")) for name, reader in READERS.items()}
    return {name: (path, path.read_bytes()) for name, path in made.items()}


def complaint(reader: Reader, path: Path) -> str:
    """What is said of a file that cannot be read, as one sentence; nothing if it can."""

    def too_long(*_: int | FrameType | None) -> None:
        raise AssertionError(f"no answer within {SECONDS} seconds")

    before, errors = signal.signal(signal.SIGALRM, too_long), io.StringIO()
    signal.alarm(SECONDS)
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
            code = enter(lambda _: lambda: read if isinstance(read := reader.read(path), int) else 0, [])
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    sentences = [line for line in errors.getvalue().splitlines() if line.startswith("error: ")]
    assert code in (0, 1, 2), code
    assert len(sentences) == (code == 2), errors.getvalue()
    for sign in ("Traceback", "something unforeseen", "memory ran out"):
        assert sign not in errors.getvalue(), errors.getvalue()
    return sentences[0] if sentences else ""


@pytest.mark.parametrize("name", READERS)
def test_a_sound_file_is_read(name: str, sound: dict[str, tuple[Path, bytes]]) -> None:
    path, content = sound[name]
    path.write_bytes(content)
    assert complaint(READERS[name], path) == ""


Given = Callable[..., None]


@pytest.fixture
def given_damage(sound: dict[str, tuple[Path, bytes]], request: pytest.FixtureRequest) -> Given:
    """Lets a reader read what is drawn, as it is written, in so many ways."""
    examples = 1000 if request.config.getoption("--thorough") else 15

    def ask(
        name: str, damage: st.SearchStrategy[bytes], written: Callable[[bytes], bytes], reader: Reader | None = None
    ) -> None:
        path, reader = sound[name][0], reader or READERS[name]

        @settings(max_examples=examples)
        @given(damage)
        def ask_one(damaged: bytes) -> None:
            path.write_bytes(written(damaged))
            complaint(reader, path)

        ask_one()

    return ask


@pytest.mark.parametrize("name", READERS)
def test_a_file_with_damaged_bytes_is_refused_in_a_sentence(
    name: str, sound: dict[str, tuple[Path, bytes]], given_damage: Given
) -> None:
    given_damage(name, damaged_bytes(sound[name][1]), bytes)


@pytest.mark.parametrize("name", JSON)
def test_a_file_that_says_nonsense_is_refused_in_a_sentence(
    name: str, sound: dict[str, tuple[Path, bytes]], given_damage: Given
) -> None:
    given_damage(name, damaged_json(json.loads(sound[name][1])), bytes)


def test_a_cell_whose_digest_was_made_to_fit_is_refused_in_a_sentence(
    sound: dict[str, tuple[Path, bytes]], given_damage: Given
) -> None:
    damage = damaged_json(json.loads(sound["cell"][1]))
    given_damage("cell", damage, with_digest, Reader(_cell, _read_forged_cell))


def test_a_checkpoint_whose_facts_are_nonsense_is_refused_in_a_sentence(
    sound: dict[str, tuple[Path, bytes]], given_damage: Given
) -> None:
    path, content = sound["checkpoint"]
    path.write_bytes(content)
    tensors = load(content)
    with safe_open(path, framework="pt") as file:
        facts = json.loads(file.metadata()["cemverify"])
    for other, words in (
        ({name: tensor[..., :1].clone() for name, tensor in tensors.items()}, "has shape"),
        ({name: tensor.bool() for name, tensor in tensors.items()}, "has shape"),
        (dict(list(tensors.items())[1:]), "is missing"),
    ):
        path.write_bytes(save(other, {"cemverify": json.dumps(facts)}))
        assert words in complaint(READERS["checkpoint"], path)
    given_damage(
        "checkpoint",
        damaged_json(facts),
        lambda damaged: save(tensors, {"cemverify": damaged.decode("utf-8", "replace")}),
    )
