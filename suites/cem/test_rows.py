"""Our kernels agree with the formula, in float32 and bfloat16, also compiled; on a CPU in Triton's interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor
from torch._dynamo import lookup_backend

from cemverify.cem import blocked
from cemverify.cem.layers import CEMAttention, PositionKind, PreconditionerConfig
from suites.cem.helpers import randn
from suites.cem.test_blocked import answers, layer, second_derivatives
from suites.kit.source import ROOT

pytest.importorskip("triton", reason="the kernels need Triton, for its interpreter too: pip install triton")
from cemverify.cem.energies import rows

ON = "cuda" if torch.cuda.is_available() else "cpu"
SHARED = PreconditionerConfig("diagonal")


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "ROWS_ON", {ON})


def on(module: CEMAttention, dtype: torch.dtype) -> CEMAttention:
    return module.to(ON, dtype)


def tokens(count: int, seed: int, dtype: torch.dtype) -> Tensor:
    return randn(2, count, 12, seed=seed).to(ON, dtype).requires_grad_()


def found(module: CEMAttention, path: blocked.Path, x: Tensor, h: Tensor, tile: int) -> list[Tensor]:
    with blocked.using(path, rows=2 * tile, tile=tile):
        return [answer.detach().double() for answer in answers(module, x, h, blocked.run)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("position", "asked", "remembered", "tile", "steps", "path"),
    [
        ("alibi", 1, 1, 4, 1, "rows"),
        ("none", 13, 13, 5, 2, "rows"),
        ("alibi", 7, 20, 3, 1, "rows"),  # with tokens before the first query
        ("rotary", 6, 6, 3, 1, "rows"),
        ("alibi", 8, 11, 3, 4, "blocks"),  # what was read is read again
    ],
)
def test_outputs_and_all_gradients_are_the_formulas_to_its_own_roundoff(
    position: PositionKind, asked: int, remembered: int, tile: int, steps: int, path: blocked.Path, dtype: torch.dtype
) -> None:
    assert_formula(position, asked, remembered, tile, steps, path, dtype)


def test_a_long_row_is_the_formula_too() -> None:
    assert_formula("alibi", 20, 300, 16, 1, "rows", torch.float32)


def assert_formula(
    position: PositionKind, asked: int, remembered: int, tile: int, steps: int, path: blocked.Path, dtype: torch.dtype
) -> None:
    module = on(layer("shared", position, SHARED, steps=steps), dtype)
    x, h = tokens(asked, 4, dtype), tokens(remembered, 5, dtype)
    with mock.patch.object(rows, "read", wraps=rows.read) as read:
        actual = found(module, path, x, h, tile)
    assert read.called, "the kernels were not asked"
    plain = found(module, "formula", x, h, tile)
    exact = found(
        module.double(), "formula", x.detach().double().requires_grad_(), h.detach().double().requires_grad_(), 1
    )
    for a, p, e in zip(actual, plain, exact, strict=True):
        largest = float(e.abs().max())
        budget = 2 * float((p - e).abs().max()) + 4 * torch.finfo(dtype).eps * largest
        assert float((a - e).abs().max()) <= budget


def test_weights_of_a_row_far_beyond_float16_are_those_of_the_formula() -> None:
    module = on(layer("shared", "alibi", SHARED, steps=1), torch.float32)
    x, h = (tokens(9, seed, torch.float32).detach().mul(1e3).requires_grad_() for seed in (4, 5))
    for a, p in zip(found(module, "rows", x, h, 4), found(module, "formula", x, h, 4), strict=True):
        torch.testing.assert_close(a, p, rtol=1e-4, atol=1e-5 * float(p.abs().max()))


def test_a_second_derivative_is_that_of_the_formula() -> None:
    module = on(layer("shared", "alibi", SHARED, steps=2), torch.float32)
    states = partial(tokens, dtype=torch.float32)
    with mock.patch("suites.cem.test_blocked.states", states):
        by_kernels = list(second_derivatives(module, "rows", own=False))
        by_formula = list(second_derivatives(module, "formula", own=False))
    for a, f in zip(by_kernels, by_formula, strict=True):
        torch.testing.assert_close(a, f, rtol=1e-3, atol=1e-4 * float(f.detach().abs().max()))


def test_the_kernels_are_taken_where_they_can_be_and_while_compiling_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def path(module: CEMAttention, dtype: torch.dtype = torch.float32, count: int = 9) -> blocked.Path:
        x = tokens(count, 4, dtype)
        return blocked.path_for(module.descent, module.energy, x, module.to(dtype).energy.remember(x))

    monkeypatch.setattr(blocked, "PAIRS", 49)
    assert [path(layer("shared", "alibi", SHARED, steps=steps).to(ON)) for steps in (2, 3)] == ["rows", "blocks"]
    others = (
        layer("per-head", "alibi", SHARED, steps=1),
        layer("shared", "self-cross", SHARED, steps=1),
        layer("shared", "alibi", SHARED, steps=1, causal=False),
        layer("shared", "alibi", steps=1),  # a preconditioner per head needs what each head has read
    )
    assert {path(other.to(ON)) for other in others} == {"tiles"}
    usual = layer("shared", "alibi", SHARED, steps=1).to(ON)
    assert path(usual, torch.float64) == "tiles"
    monkeypatch.setattr(blocked, "LONGEST_ROW", 8)
    assert path(usual) == "tiles"


def test_compiled_they_are_one_graph_and_the_same_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blocked, "PAIRS", 49)
    monkeypatch.setattr(blocked, "ROWS_TILE", 5)
    module, x = on(layer("shared", "alibi", SHARED, steps=3), torch.float32), tokens(9, 4, torch.float32)
    graphs: list[str] = []

    def backend(graph: Any, inputs: Any) -> Any:
        graphs.append(graph.print_readable(print_output=False))
        return lookup_backend("aot_eager")(graph, inputs)

    torch.compiler.reset()
    out = torch.compile(lambda x: module.residual(x)[0], backend=backend, fullgraph=True, dynamic=False)(x)
    (graph,) = graphs
    assert "cemverify.softmax_rows" in graph
    with blocked.using("formula"):
        expected = module.residual(x)[0]
    sources = (x, *module.parameters())
    for a, e in zip(
        (out, *torch.autograd.grad(out.square().sum(), sources)),
        (expected, *torch.autograd.grad(expected.square().sum(), sources)),
        strict=True,
    ):
        torch.testing.assert_close(a, e, rtol=1e-4, atol=1e-5 * float(e.detach().abs().max()))


def test_triton_compiles_them_for_an_h100_with_loads_of_sixteen_bytes() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, "-m", "suites.cem.assembled"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    # of a row four times four bytes, and one slope at a time
    assert done.stdout.splitlines() == 2 * [".b32 .v4.b32"], done.stderr


@pytest.mark.thorough
def test_the_catalogue_holds_by_the_kernels() -> None:
    options = ["--dtype", "float32", "--properties", "gradient/attention", "training/attention", "--examples", "6"]
    command = [sys.executable, "-m", "cemverify", "check", "suites.cem.interpreted:mine", *options]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout
