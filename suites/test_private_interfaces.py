"""What Hypothesis, multiprocessing and torch do not promise is used in a few files alone, and is what it was."""

from __future__ import annotations

import ast
import multiprocessing
import multiprocessing.spawn
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from cemverify.cem import torch_internals
from suites.kit.source import PACKAGES, files_of, name

# Each file with what it takes that no documentation has. A file that is not here takes nothing of the kind.
USED = {
    "cemverify/cem/torch_internals.py": {
        *("torch._subclasses.fake_tensor", "torch.utils._python_dispatch", "torch.utils._pytree"),
        *("torch._dynamo", "_dynamo", "_C", "_are_functorch_transforms_active", "_current_level", "_functorch"),
        *("_len_torch_function_stack", "_len_torch_dispatch_stack"),
        *("_softmax_backward_data", "_standard_gamma", "_set_deterministic_algorithms", "_tensor_str"),
    },
    "cemverify/conformance/questions/hypothesis_draws.py": {
        *("hypothesis.internal.conjecture.providers", "_maybe_draw_constant")
    },
    "cemverify/processes/forkserver.py": {
        *("multiprocessing.forkserver", "multiprocessing.resource_tracker", "multiprocessing.util"),
        *("_config", "_forkserver"),
    },
    "benchmarks/rehearsal/watching.py": {
        *("_scaled_dot_product_efficient_attention", "_scaled_dot_product_flash_attention")  # names of operators
    },
    "suites/blind/bases/base_torch.py": {"_C", "_functorch"},  # a layer by somebody else
    "suites/synthetic/test_second_step.py": {"torch._dynamo.utils"},
    "suites/fuzzing/zygote.py": {"multiprocessing.util", "_exit_function"},
}
DOCUMENTED = ("connection", "context", "managers", "pool", "queues", "shared_memory", "sharedctypes", "synchronize")

SEEN = "it was this in CPython 3.11.7, 3.12.1, 3.13.0 and 3.13.5; see what changed, and alter {} and this text"


def private(tree: ast.AST) -> Iterator[str]:
    """What a file takes of the libraries that has no documentation: modules, and names that begin with "_"."""
    ours: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom | ast.Import):
            within = node.module if isinstance(node, ast.ImportFrom) else None
            for alias in node.names:
                whole = f"{within}.{alias.name}" if within else alias.name
                library, _, rest = whole.partition(".")
                if library not in ("hypothesis", "multiprocessing", "torch"):
                    continue
                ours.add(alias.asname or alias.name.partition(".")[0])
                if library == "hypothesis" and rest.startswith(("internal", "_")):
                    yield whole.rpartition(".")[0] if within else whole
                elif library == "torch" and "._" in whole:
                    yield within if within and "._" in within else whole
                elif (
                    library == "multiprocessing"
                    and rest
                    and rest.split(".")[0] not in (*DOCUMENTED, *multiprocessing.__all__)
                ):
                    yield whole
    for node in ast.walk(tree) if ours else ():
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            names = {inner.id for inner in ast.walk(node.value) if isinstance(inner, ast.Name)}
            if names & ours:
                yield node.attr


def test_private_names_stand_in_the_files_that_are_listed() -> None:
    tests = {"suites/test_private_interfaces.py", "suites/test_hypothesis_draws.py"}  # which ask whether they hold
    used = {
        name(file): names
        for package in (*PACKAGES, "suites", "examples", "docs")
        for file in files_of(package)
        if name(file) not in tests and (names := set(private(ast.parse(file.read_text()))))
    }
    assert used == USED


def test_a_process_that_starts_afresh_begins_in_the_function_whose_name_is_looked_for() -> None:
    assert callable(multiprocessing.spawn._main), SEEN.format("cemverify/processes/server_start.py")


# --- torch ----------------------------------------------------------------------------------------------

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
    assert seen == [(False, False, False), (True, True, True), (True, False, True)], TORCH


def test_forward_mode_is_a_transform() -> None:
    with forward_ad.dual_level():
        assert torch_internals.is_transforming(), TORCH
    assert not torch_internals.is_transforming(), TORCH


def test_modes_are_counted() -> None:
    before = torch_internals.count_modes()
    assert not torch_internals.is_dispatching(), TORCH
    with torch_internals.FakeTensorMode():  # a mode of operators
        assert torch_internals.is_dispatching(), TORCH
        assert torch_internals.count_modes() == (before[0], before[1] + 1), TORCH
    with TorchFunctionMode():
        assert torch_internals.count_modes() == (before[0] + 1, before[1]), TORCH


def test_what_is_deterministic_is_what_is_set() -> None:
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    try:
        torch_internals.set_deterministic(True, warn_only=True)
        assert torch.are_deterministic_algorithms_enabled(), TORCH
        assert torch.is_deterministic_algorithms_warn_only_enabled(), TORCH
    finally:
        torch_internals.set_deterministic(before[0], warn_only=before[1])
