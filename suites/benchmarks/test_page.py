"""The benchmarks of a CPU: what they print was measured, and nothing is printed that missed its budget."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from benchmarks import page
from benchmarks.__main__ import main
from benchmarks.attention import Kind, Row, Shape, flops, kinds, measure, table
from benchmarks.measuring import in_turn, ratio
from benchmarks.memory import saved_bytes
from cemverify.cem import blocked
from cemverify.cem.layers import CEMAttention
from cemverify.results import envelope
from synthetic.flops import matmul_flops
from synthetic.training.machine import peak_memory


def rows(**options: object) -> list[Row]:
    return measure(
        Shape(1, 64, 16, 2),
        [Kind("T=1, shared diagonal, ALiBi", 1, "shared", "alibi")],
        device="cpu",
        dtype=torch.float32,
        paths=("tiles", "blocks"),
        rounds=3,
        seconds=1.0,
        **options,  # type: ignore[arg-type]
    )


def test_tasks_are_run_in_turn_and_the_first_round_warms_up() -> None:
    order: list[str] = []

    def noting(name: str) -> Callable[[], object]:
        return lambda: order.append(name)

    timings = in_turn({"a": noting("a"), "b": noting("b")}, "cpu", rounds=3, seconds=60)
    assert order == ["a", "b", "a", "b", "b", "a", "a", "b"]
    assert [len(t.seconds) for t in timings.values()] == [3, 3]


def test_a_ratio_knows_what_took_twice_as_long(monkeypatch: pytest.MonkeyPatch) -> None:
    spent = [0.0]

    def work(seconds: float) -> Callable[[], object]:
        return lambda: spent.append(spent.pop() + seconds)

    monkeypatch.setattr("benchmarks.measuring.time.process_time", lambda: spent[0])
    timings = in_turn({"once": work(0.25), "twice": work(0.5)}, "cpu", rounds=3, seconds=60)
    assert ratio(timings["twice"], timings["once"]).mean == pytest.approx(2.0)


def test_no_time_is_printed_for_a_path_that_misses_its_error_budget() -> None:
    (row, _) = rows()
    (good,) = table("t", [row]).rows
    (bad,) = table("t", [replace(row, budget=replace(row.budget, margin=1.5, name="output"))]).rows
    assert str(good[3])[0].isdigit()
    assert bad[3] == "error budget missed: output"
    assert bad[5] == ""


@pytest.mark.parametrize("kind", kinds((1, 3)), ids=lambda kind: kind.name)
def test_flops_are_those_that_torch_counts_but_for_the_causal_half(kind: Kind) -> None:
    shape = Shape(1, 48, 16, 2)
    layer = CEMAttention(kind.config(shape.dim, shape.heads), torch.Generator().manual_seed(0))
    with blocked.using("formula"):
        dense = matmul_flops(layer.to("meta"), torch.zeros(1, 48, 16, device="meta")) / 48
    # torch counts no products of numbers with numbers, and every pair of tokens
    pairs = flops(kind, replace(shape, tokens=95))
    assert dense == pytest.approx(pairs, rel=0.06)


def test_memory_is_counted_once_for_each_piece() -> None:
    linear = torch.nn.Linear(8, 8, bias=False)
    h = torch.randn(4, 8)
    assert saved_bytes(linear, linear, h) == h.numel() * 4
    assert saved_bytes(linear, lambda x: linear(x) * linear(x), h) == 3 * h.numel() * 4


def test_the_command_writes_a_result_a_page_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(page, "HEADS", 2)
    monkeypatch.setattr(page, "DIM", 16)
    monkeypatch.setattr(page, "LENGTHS", ((1, 32), (1, 64)))
    output, text = tmp_path / "b.json", tmp_path / "b.md"
    assert main(["attention", "--seconds", "1", "--output", str(output), "--page", str(text)]) == 0
    assert "time / FLOPs" in capsys.readouterr().out
    assert envelope.read(output)["kind"] == "benchmarks"
    assert "b-roofline.svg" in text.read_text()
    assert (tmp_path / "b-roofline.svg").read_text().startswith("<?xml")
    assert main(["mlp", "--report", str(output)]) == 2
    assert "--report shows a result file as it is" in capsys.readouterr().err


def test_the_page_begins_with_what_was_found_and_says_nothing_of_what_was_not_measured() -> None:
    timed = {"failure": None, "seconds": [2.0, 2.0], "baseline_seconds": [1.0, 1.0], "flop_ratio": 1.5}
    rows = [timed | {"attention": "T=1"}, timed | {"attention": "T=8, ALiBi", "seconds": [3.0, 3.0]}]
    sentences = " ".join(page.conclusions({"benchmarks": {"attention": {"rows": rows}}}))
    assert "CEM attention without ALiBi or diagonal takes 2.0 (T = 1) times as long" in sentences
    assert "T = 2)" not in sentences
    assert "time over FLOPs is 2.0" in sentences
    assert "block" not in sentences
    assert list(page.conclusions({"benchmarks": {}})) == []


def test_the_peak_of_memory_is_that_of_this_program() -> None:
    before = peak_memory("cpu")
    held = bytearray(before + 2**26)  # more than ever before, and every page of it written
    held[::4096] = b"1" * len(held[::4096])
    assert before + 2**26 <= peak_memory("cpu") < 4 * before + 2**28
