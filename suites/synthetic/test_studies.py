"""Every study, as conducted by a command: unfinished it decides nothing; its cells alone make its page elsewhere."""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cemverify.results import envelope
from cemverify.results.envelope import result
from cemverify.results.provenance import Maker
from cemverify.runs.exchange import cells_of
from suites.kit.commands import Told, refused
from synthetic.__main__ import _parser as parser_of
from synthetic.language.studies import STUDIES as CONDUCTED
from synthetic.language.studies import planned, study_of
from synthetic.studies.depth_dial.rows import TEST_DEPTHS
from synthetic.studies.engine.conduct import WantedCells, follow
from synthetic.studies.engine.designs import parameters
from synthetic.studies.engine.pages import write_page
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.stopping import STOPS, AtStop
from synthetic.studies.engine.study import StudyOutcome, everything, figures
from synthetic.studies.engine.trials import TrialRecord, compute_trial
from synthetic.studies.engine.tuning import StudyState, Tuned
from synthetic.studies.engine.tuning import study as tuned

CHAIN = "--corpus hidden --symbols 8 --states 4 --length 20000 --device cpu"
SMALL = f"{CHAIN} --dim 8 --heads 2 --layers 1 --batch 4 --context 8 --workers 0"


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tmp_path_factory.mktemp("studies") / "corpora")


@pytest.mark.parametrize(
    ("line", "first", "title", "page", "printed"),
    [
        pytest.param(
            "second-step --steps 16 --seeds 2 --tuning 1 --rows 'T = 1' 'T = 2, eta 1/2'",
            *(8, "second-step-attention", "This rests on 2 seeds", "computed: attention by the formula"),
            marks=pytest.mark.thorough,
        ),
        (
            "study replace-mlp --steps 3 --seeds 2",
            *(
                6,
                "language-replace-mlp",
                "CEM MLPs are somewhat worse",
                "computed: PyTorch's own layers (Llama, RoPE)",
            ),
        ),
    ],
)
def test_a_study_is_conducted_and_its_cells_alone_make_its_page_on_another_machine(
    line: str, first: int, title: str, page: str, printed: str, corpora: str, here: Path, told: Told
) -> None:
    command = (
        f"synthetic language {line} {SMALL} --corpora {corpora} --cells cells.jsonl --page page.md --output o.json"
    )

    def written() -> dict[str, bytes]:
        return {p.name: p.read_bytes() for p in here.iterdir() if p.suffix in (".md", ".svg", ".jsonl")}

    before = told(f"{command} --store a --until 0").out
    assert f"not finished: {first} trainings are next; the same command goes on" in before
    once, files = told(f"{command} --store a"), written()
    assert printed in once.out
    assert page in " ".join((here / "page.md").read_text().split())
    assert {"page.md", "page-ratios.svg", "cells.jsonl"} <= set(files)
    read, content = envelope.read(here / "page.json"), envelope.read(here / "o.json")
    assert (read["study"], read["replicates"]) == (title, "2 seeds")
    assert (content["kind"], content["missing"]) == ("readings", 0)
    again = told(f"{command} --store b --until 0")
    assert "computing" not in again.err
    assert again.out == once.out
    for file, made in written().items():
        assert made.replace(b" --store b", b" --store a") == files[file], file
    assert write_page(here / "again" / "page.md", content)
    assert (here / "again" / "page.md").read_bytes() == files["page.md"]


def made_up(plan: Plan) -> StudyOutcome:
    """A finished study with made-up bits: rows differ, and seeds differ a little."""
    rows = []
    for i, row in enumerate(plan.rows):
        judged: dict[int, TrialRecord | None] = {}
        for seed in range(plan.seeds):
            bits = (2 + 0.02 * (3 * i % 5)) * (1 + 0.001 * ((seed + i) % 3))
            at_depths = tuple(bits + 0.01 * abs(T - 3) for T in TEST_DEPTHS)
            stops = tuple(AtStop(q, 1 / q, bits + q) for q in STOPS)
            along = ((500, bits + 1), (1000, bits))
            scores = ((bits, bits), (bits,), None, None, (), (), "", at_depths, stops, along)
            judged[seed] = TrialRecord(parameters(row.design), 1.0, 2.0 + i, *scores)
        rows.append(Tuned(row, rate=0.01, judged=judged))
    return StudyOutcome(plan, StudyState(tuple(rows)), "text", "byte")


@pytest.mark.parametrize("name", CONDUCTED)
def test_a_study_finds_its_rows_whatever_their_titles_say(name: str) -> None:
    """So its verdicts depend on no text; a title that is printed is the row's."""
    plan = CONDUCTED[name].plan(None, 256, seeds=6, with_beyond=name == "second-step")
    said = CONDUCTED[name].read(made_up(plan))
    titles = {f"<{i}>": row.name for i, row in enumerate(plan.rows)}
    renamed = tuple(replace(row, name=title) for title, row in zip(titles, plan.rows, strict=True))
    other = replace(plan, rows=renamed)
    found = CONDUCTED[name].read(made_up(other))

    def retitled(text: str) -> str:
        for nonsense, title in titles.items():
            text = text.replace(nonsense, title)
        return text.replace(other.name, plan.name)  # the plan's name covers the titles

    assert [pair.keys for pair in found.compared] == [pair.keys for pair in said.compared] != []
    assert [pair.verdict for pair in found.compared] == [pair.verdict for pair in said.compared]
    assert retitled(found.conclusion) == said.conclusion
    assert retitled(str(found.figures)) == str(said.figures)
    assert retitled(str(found.more.get("statements"))) == str(said.more.get("statements"))
    assert len(found.page.tables) == len(said.page.tables)


@pytest.mark.usefixtures("here")
def test_a_shard_leaves_the_rest_to_others(corpora: str, told: Told) -> None:
    study = f"synthetic language study replace-mlp {SMALL} --steps 3 --seed 7 --seeds 2 --corpora {corpora}"
    printed = told(f"{study} --shard 1/2")
    assert "shard 1 of 2 is finished" in printed.err
    assert printed.out == ""


@pytest.mark.parametrize(
    ("line", "sentences"),
    [
        ("second-step --replaced mlp --size small --beyond", ("1,046,560", "T = 1, twice", "T = 2, momentum")),
        ("study replace-mlp --size 86M --tflops 200", ("86,371,488", "200 useful TFLOP/s")),
    ],
)
def test_an_estimate_says_what_a_study_takes_and_computes_nothing(
    line: str, sentences: tuple[str, ...], here: Path, told: Told
) -> None:
    printed = told(f"synthetic language {line} --estimate").out
    assert [sentence for sentence in sentences if sentence not in printed] == []
    assert not list(here.iterdir())


# suites/entry tests the numbers and names of every command, so they are not tested here.
REFUSED: dict[str, Any] = {
    "train --heads 3 --dim 32": "3 heads do not split a model dimension of 32",
    f"train {CHAIN} --preset tiny --context 10000000": "a context of 10,000,000 tokens is longer than the data",
    f"train {CHAIN} --preset tiny --batch 7 --accumulate 2": "a batch of 7 windows cannot be shared equally",
    "train --corpus hidden --order 3": "--order belongs to --corpus markov: leave it out",
    "train --megabytes 1": "--megabytes belongs to --dataset: leave it out",
    "train --models cem-t9 --preset tiny": "unknown model 'cem-t9' in this run; choose from llama-rope, llama-alibi",
    "train --folder /proc/nowhere": "cannot write /proc/nowhere",
    "train --text nowhere": "no file or folder nowhere",
    "study reuse --dim 16 --heads 16": "16 heads do not split a model dimension of 16 into equal, even",
    f"study reuse {CHAIN} --context 90000": "a context of 90,000 tokens is longer than the data",
    "study reuse --size 86M --dim 16": "size 86M has its own dimensions",
    f"study reuse {CHAIN} --size 86M": "size 86M has a vocabulary of 32,000, but this corpus has 8",
    "study reuse --beyond": "--beyond is not for the paper's experiments: leave it out",
    "study learning-rate --learning-rate 0.1": "has learning rates of its own",
    "second-step --replaced norm": "unknown layers 'norm'; choose from attention, mlp, full",
    "second-step --rows Q": "there is no row 'Q'; choose from T = 1; ",
    "second-step --size large": "unknown size 'large'; choose from tiny, small, 86M",
    "second-step --learning-rate 0.1": "has learning rates of its own",
    "second-step --shard 1/2": "cannot be cut into shards",
    "second-step --page a.md --output a.json": "--page writes a.json too; give --output another name",
    "fixed-memory --preconditioner round": "unknown preconditioner 'round'; choose from identity, diagonal, low-rank",
}


NO_GPU = pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device, so it can be used")


@pytest.mark.parametrize("line", [*REFUSED, pytest.param("train --device cuda", marks=NO_GPU)])
def test_what_makes_no_sense_is_refused_before_anything_is_kept(
    line: str, corpora: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sentence = REFUSED.get(line, "device 'cuda' is not available")
    assert sentence in refused(["synthetic", "language", *line.split(), "--corpora", corpora], capsys)
    assert list(here.iterdir()) == []


# --- published pages still agree with their cells -----------------------------------------------------


RESULTS = Path(__file__).parents[2] / "docs" / "results"
CELLS = sorted(RESULTS.glob("*.cells.jsonl"))
# All others together take a minute.
QUICK = ("dial-mlp", "second-step-attention-5")


def published() -> list[Any]:
    names = [path.name.removesuffix(".cells.jsonl") for path in CELLS]
    assert set(QUICK) <= set(names)
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.thorough) for name in names]


@pytest.mark.parametrize("name", published())
def test_the_page_of_a_published_study_is_made_again_of_its_cells_byte_for_byte(name: str, tmp_path: Path) -> None:
    readings = json.loads((RESULTS / f"{name}.json").read_text())
    options = parser_of(["language"]).parse_args(shlex.split(readings["made_by"]["command"])[3:])
    study = study_of(options.study)
    cells = dict(cells_of(RESULTS / f"{name}.cells.jsonl"))
    first = next(iter(cells.values()))
    corpus = compute_trial.restore(first["spec"]).corpus
    device = first["spec"]["device"]

    def look(wanted: WantedCells) -> Any:
        return [cells[cell.key]["payload"] if cell.key in cells else None for cell in wanted.cells]

    plan = planned(study, options, corpus.choice.vocabulary)
    progress = follow(tuned(plan, corpus, device), look)
    assert not progress.todo or study.registered  # which compares nothing early
    assert {cell.key for cell in progress.computed} == set(cells)
    text: Any = re.search(r"steps on (.*?), embeddings", readings["recipe"])
    unit: Any = re.match(r"bits per (\w+)", readings["figure"])
    everything_ = StudyOutcome(plan, progress.result, text[1], unit[1], readings.get("source_bits"))
    findings = study.read(everything_)
    measured = figures(study.name, everything_, findings)
    assert {key: readings[key] for key in measured} == json.loads(json.dumps(measured))
    maker = Maker.now(readings["made_by"]["command"], {}, 0, "cpu")
    content = result("readings", maker, findings.page.tables, everything(study.name, everything_, findings))
    written = write_page(tmp_path / f"{name}.md", json.loads(json.dumps(content)))
    assert len(written) > 1 or progress.todo
    for path in () if progress.todo else written:
        assert path.read_bytes() == (RESULTS / path.name).read_bytes(), path.name
