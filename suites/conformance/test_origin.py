"""Where an implementation is written, and a digest that another version of it does not share."""

from __future__ import annotations

import functools
import sys
from pathlib import Path

import pytest
import torch

from cemverify import check_implementation, energy_layer, implementation, implementation_from_modules
from cemverify.conformance.implementations.contract import Subject, load
from cemverify.conformance.implementations.origin import Origin, Place, origin_of

HERE = "suites/conformance/test_origin.py"


def own(x: torch.Tensor, *_: object) -> torch.Tensor:
    return x


class Layer(torch.nn.Module):
    """A layer that is written in this file and not in a library."""

    def forward(self, x: torch.Tensor, *_: object) -> torch.Tensor:
        return x


@functools.wraps(own)
def wrapped(*arguments: torch.Tensor) -> torch.Tensor:
    return own(*arguments)


@pytest.mark.parametrize(
    "function",
    [own, functools.partial(own), wrapped, Layer(), Layer().forward, torch.vmap(own)],
    ids=["function", "partial", "wrapped", "module", "method", "vmap"],
)
def test_a_function_is_found_behind_what_wraps_it(function: object) -> None:
    place = origin_of(implementation(attention=function)).places["attention"]  # type: ignore[arg-type]
    assert place.file == HERE
    assert place.name in ("own", "forward")


def test_the_layers_behind_an_adapter_are_found() -> None:
    adapted = implementation_from_modules(attention=lambda config: Layer())
    assert origin_of(adapted).places["attention"].file == HERE


@pytest.mark.parametrize("function", [max, torch.relu, type("Odd", (), {"__call__": max})()])
def test_what_has_no_lines_has_no_place_and_no_digest(function: object) -> None:
    assert not origin_of(energy_layer(update=function, dim=2)).places  # type: ignore[arg-type]


def test_the_digest_follows_the_files_and_what_they_import_from_beside_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    main = "import beside\nfrom cemverify import implementation\n"
    main += "def attention(x, *_): return beside.f(x)\nmine = implementation(attention=attention)\n"
    (tmp_path / "before_and_after.py").write_text(main)

    def origin(beside: str) -> Origin:
        (tmp_path / "beside.py").write_text(beside)
        for name in ("beside", "before_and_after"):
            sys.modules.pop(name, None)
        return origin_of(load("before_and_after:mine"))

    first = origin("f = lambda x: x")
    assert first.places["attention"] == Place("before_and_after.py", 3, "attention")
    assert first.digest == origin("f = lambda x: x").digest != origin("f = lambda x: 2 * x").digest


def test_a_run_in_worker_processes_says_what_a_run_here_says() -> None:
    name, properties = "suites.conformance.wrong_layers:single", ("gradient/layer/energy", "structure/layer/dtype")
    subject: Subject = load(name)
    here, there = (check_implementation(each, properties=properties, examples=4).finished for each in (subject, name))
    assert [(r.id, r.verdict, r.margin, r.examples) for r in here.records] == [
        (r.id, r.verdict, r.margin, r.examples) for r in there.records
    ]
    assert there.origin.places == here.origin.places == origin_of(subject).places
    assert there.origin.places["update"].file == "suites/conformance/wrong_layers.py"
    assert there.origin.digest is not None
