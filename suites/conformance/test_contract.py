"""Kinds of implementation, absences, array kinds and adapters."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import check_implementation, energy_layer, implementation, implementation_from_modules
from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import MLPConfig
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import absences, as_subject
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.verdicts import Record, Verdict
from examples.mlp_module import GatedMLP

LEAN = ("steps", "diagonal", "position", "preconditioner", "norm", "validation")


def verdicts(records: list[Record]) -> set[Verdict]:
    return {record.verdict for record in records}


def test_a_group_name_declares_all_its_members_absent() -> None:
    assert absences(["diagonal"]) == {"diagonal:shared", "diagonal:per-head"}


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: absences(["rotary"]), r"unknown feature 'rotary'; choose from .*position"),
        (lambda: implementation(attention=reference.attention, not_offered="norm"), "collection of names"),
        (implementation, "at least one of: attention, mlp"),
        (lambda: as_subject({}), "is a dict, not an implementation"),
        (lambda: as_subject(Mine), "is a class: give an instance of it"),
        (lambda: module_implementation({"W_k": "gate_proj.weight"}), r"names contains W_k; the weights are .*W_K"),
        *((lambda options=options: energy_layer(update=lambda x, m: x, **options), "an energy layer")
          for options in ({"dim": True}, {"dim": 0}, {"dim": 2, "step_size": float("nan")})),
    ],
)  # fmt: skip
def test_what_cannot_be_declared_is_refused_in_a_sentence(declare: Callable[[], object], sentence: str) -> None:
    with pytest.raises((ValueError, LoadError), match=sentence):
        declare()


class Mine:
    """Whose instances are implementations."""

    mlp = staticmethod(reference.mlp)
    not_offered = ("norm",)


def test_an_object_with_the_functions_as_attributes_is_an_implementation() -> None:
    subject = as_subject(Mine())
    assert set(subject.not_offered) >= {"attention", "norm:scalar"}


def test_jax_functions_are_judged_too() -> None:
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")

    def mlp(x: Any, h: Any, weights: Any, config: MLPConfig) -> Any:
        V, W = weights["V"], weights["W"]
        return x + config.step_size * (jax.nn.silu(x @ V.T) * (h @ W.T)) @ V

    subject = implementation(mlp=mlp, arrays="jax", not_offered=LEAN)
    properties = ["gradient/mlp/silu", "structure/mlp", "precision/mlp/float32", "precision/mlp/bfloat16"]
    records = check_implementation(subject, properties=properties, examples=6)
    assert not jax.config.jax_enable_x64
    assert Verdict.VIOLATED not in verdicts(records)


def module_implementation(names: dict[str, str | tuple[str, ...]]) -> Any:
    activations = tuple(f"activation:{name}" for name in ACTIVATIONS if name != "silu")
    absent = (*LEAN, "start", "step-size", *activations)
    return implementation_from_modules(mlp=GatedMLP, names=names, not_offered=absent)


def test_a_module_of_linear_layers_with_tied_weights_holds() -> None:
    tied = module_implementation({"V": ("gate_proj.weight", "down_proj.weight.T"), "W": "up_proj.weight"})
    assert verdicts(check_implementation(tied, examples=6)) == {Verdict.HOLDS, Verdict.NOT_OFFERED}


def test_a_module_is_judged_without_torchs_compiler_until_a_property_compiles() -> None:
    """Importing it takes a second in each process of a check."""
    code = (
        "import sys\nfrom cemverify import check_implementation\nfrom examples.attention_module import mine\n"
        "for asked in ('gradient/attention/plain', 'modes/attention/compiled'):\n"
        "    record, = check_implementation(mine, properties=[asked], examples=2)\n"
        "    print(record.verdict.value, 'torch._dynamo' in sys.modules)"
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, cwd=root)
    assert done.stdout.splitlines() == ["holds False", "holds True"]


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ({"W": "gate_proj.weight", "V": ("up_proj.weight", "down_proj.weight.T")}, ""),  # as the paper has them
        ({"V": "gate_proj.weight", "W": "up_proj.weight"}, "parameters down_proj.weight get no weight"),
        ({"V": "gate.weight", "W": "up_proj.weight"}, "no parameter 'gate.weight' for V"),
    ],
)
def test_a_module_whose_weights_go_elsewhere_is_violated(names: dict[str, Any], words: str) -> None:
    (record,) = check_implementation(module_implementation(names), properties=["gradient/mlp/silu"], examples=20)
    assert record.verdict == Verdict.VIOLATED
    assert words in str(record.reason)


def test_a_relu_layer_holds_at_the_kink() -> None:
    generator = torch.Generator().manual_seed(4)
    V, W = (torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    V = 30 * V * torch.tensor([0.001, 1, 1, 1], dtype=torch.float64)

    def energy(x: Tensor, memory: Tensor) -> Tensor:
        return -((memory @ W.T) * F.relu(x @ V.T) ** 2 / 2).sum(-1)

    layer = energy_layer(update=lambda x, m: ((m @ W.T) * F.relu(x @ V.T)) @ V, energy=energy, dim=4)
    records = check_implementation(layer, examples=200, seed=4, properties=["gradient/layer/conservative-field"])
    assert verdicts(records) == {Verdict.HOLDS}


def test_a_layer_that_reads_only_h_is_asked_to_refuse_bad_h() -> None:
    def reads_h(x: Tensor, h: Tensor, w: dict[str, Tensor], c: Any) -> Tensor:
        return reference.attention(h, h, w, c)

    subject = implementation(attention=reads_h, not_offered=("start",))
    records = check_implementation(subject, properties=["rejection/attention"], examples=8)
    assert verdicts(records) == {Verdict.HOLDS, Verdict.NOT_OFFERED}


def test_an_implementation_may_make_one_thread_wait_for_another() -> None:
    lock = threading.Lock()

    def one_at_a_time(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:
        with lock:
            return reference.mlp(x, h, weights, config)

    (record,) = check_implementation(
        implementation(mlp=one_at_a_time), properties=["contract/mlp/threads"], examples=2
    )
    assert record.verdict == Verdict.HOLDS, record
