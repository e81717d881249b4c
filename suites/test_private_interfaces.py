"""Undocumented behaviour of multiprocessing and torch that the code relies on is unchanged."""

from __future__ import annotations

import multiprocessing
import multiprocessing.spawn
import os
from multiprocessing import util
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from cemverify.cem import torch_internals
from cemverify.processes.forkserver import FORKS, ensure_server, server

SEEN = "it was this in CPython 3.11.7, 3.12.1, 3.13.0 and 3.13.5; see what changed, and alter {} and this text"


@pytest.mark.skipif(not FORKS, reason="Linux alone forks workers from a server")
def test_the_server_of_forks_has_the_process_id_that_is_read_and_the_folder_that_is_set_for_its_socket(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ensure_server()
    assert server() is not None, SEEN.format("forkserver.server")
    os.kill(server() or 0, 0)
    config: Any = multiprocessing.current_process()._config  # type: ignore[attr-defined]
    monkeypatch.setitem(config, "tempdir", "/nowhere")
    assert util.get_temp_dir() == "/nowhere", SEEN.format("forkserver._shorten_the_temporary_folder")


def test_a_process_that_starts_afresh_begins_in_the_function_whose_name_is_looked_for() -> None:
    assert callable(multiprocessing.spawn._main), SEEN.format("cemverify/processes/server_start.py")


TORCH = SEEN.replace("CPython 3.11.7, 3.12.1, 3.13.0 and 3.13.5", "torch 2.6 and 2.13").format("torch_internals.py")


def test_transforms_of_functions_are_noticed() -> None:
    seen: list[tuple[bool, bool, bool]] = []

    def look(x: Tensor) -> Tensor:
        state = torch_internals.is_transforming(), torch_internals.is_batched(x), torch_internals.is_wrapped(x)
        seen.append(state)
        return (x * x).sum()

    x = torch.ones(2, 3)
    look(x)
    torch.func.vmap(look)(x)
    torch.func.grad(look)(x)
    with forward_ad.dual_level():
        look(x)
    assert seen == [(False, False, False), (True, True, True), (True, False, True), (True, False, False)], TORCH


def test_a_compiled_function_is_rewritten_as_inductor_does() -> None:
    @torch.compile(backend=torch_internals.inductor_without_code)
    def attended(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return (q @ k.permute(0, 1, 3, 2)).mul(0.5).softmax(-1) @ v

    with torch.profiler.profile() as profile:
        attended(*torch.randn(3, 2, 2, 5, 4))
    assert any("scaled_dot_product" in event.key for event in profile.key_averages()), TORCH


class _Overriding(Tensor):
    @classmethod
    def __torch_function__(cls, *_: Any, **__: Any) -> Any:
        raise AssertionError("it was called")


def test_modes_are_counted_leaves_of_trees_listed_and_no_subclass_takes_operations_over() -> None:
    before = torch_internals.count_modes()
    assert not torch_internals.is_dispatching(), TORCH
    with torch_internals.FakeTensorMode():  # an operator mode
        assert torch_internals.is_dispatching(), TORCH
        assert torch_internals.count_modes() == (before[0], before[1] + 1), TORCH
    with TorchFunctionMode():
        assert torch_internals.count_modes() == (before[0] + 1, before[1]), TORCH
    assert torch_internals.tree_leaves([1, (2, {"a": 3})]) == [1, 2, 3], TORCH
    array = torch.ones(2).as_subclass(_Overriding)
    with torch_internals.without_overrides():
        assert type(Tensor.as_subclass(array, Tensor)) is Tensor, TORCH


def test_settings_are_those_that_are_set() -> None:
    import torch._dynamo

    options, limit = dict(torch_internals.print_options()), torch._dynamo.config.recompile_limit
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch_internals.set_deterministic(True, warn_only=True)
        assert torch.are_deterministic_algorithms_enabled(), TORCH
        assert torch.is_deterministic_algorithms_warn_only_enabled(), TORCH
        torch.set_printoptions(precision=9)  # type: ignore[no-untyped-call]
        assert torch_internals.print_options()["precision"] == 9, TORCH
        torch_internals.limit_recompilations(3)
        assert torch._dynamo.config.recompile_limit == 3, TORCH
    finally:
        torch_internals.set_deterministic(before[0], warn_only=before[1])
        torch_internals.print_options().update(options)
        torch_internals.limit_recompilations(limit)
    assert torch_internals.print_options() == options, TORCH
