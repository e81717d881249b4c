"""Kinds of implementation, absences, array kinds and adapters."""

from __future__ import annotations

import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from cemverify import check_implementation, energy_layer, implementation, implementation_from_modules
from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.conformance.asking.calls import Caller
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import absences, as_subject
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.judging.verdicts import Record, Verdict
from cemverify.conformance.oracle.golden import golden
from cemverify.conformance.questions.cases import dense_case
from examples.mlp_module import GatedMLP

LEAN = ("steps", "diagonal", "position", "preconditioner", "norm", "validation")


def verdicts(records: list[Record]) -> set[Verdict]:
    return {record.verdict for record in records}


def test_a_group_name_declares_all_its_members_absent() -> None:
    assert absences(["diagonal"]) == {"diagonal:shared", "diagonal:per-head"}


def test_an_unknown_absence_lists_the_valid_names() -> None:
    with pytest.raises(ValueError, match=r"unknown feature 'rotary'; choose from .*position"):
        absences(["rotary"])


def test_a_string_of_absences_is_refused_rather_than_read_letter_by_letter() -> None:
    with pytest.raises(ValueError, match="collection of names"):
        implementation(attention=reference.attention, not_offered="norm")


def test_an_implementation_without_functions_is_refused() -> None:
    with pytest.raises(ValueError, match="at least one of: attention, mlp"):
        implementation()


def test_an_object_with_the_functions_as_attributes_is_an_implementation() -> None:
    subject = as_subject(SimpleNamespace(mlp=reference.mlp, not_offered=("norm",)))
    assert set(subject.not_offered) >= {"attention", "norm:scalar"}


def test_an_object_that_is_of_neither_kind_is_refused_in_a_sentence() -> None:
    with pytest.raises(LoadError, match="is a dict, not an implementation"):
        as_subject({})


def test_numpy_functions_get_numpy_arrays_of_the_asked_dtype() -> None:
    seen: list[Any] = []

    def attention(x: Any, h: Any, weights: Any, config: Any) -> Any:
        seen.extend([x, h, *weights.values()])
        return x

    case = dense_case(AttentionConfig(4, 2, temperature=1.0), 1, 3, 0)
    Caller(implementation(attention=attention, arrays="numpy"), torch.float32).output(case)
    assert all(isinstance(a, np.ndarray) and a.dtype == np.float32 for a in seen)


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


def test_the_same_module_with_the_papers_names_is_violated() -> None:
    swapped = module_implementation({"W": "gate_proj.weight", "V": ("up_proj.weight", "down_proj.weight.T")})
    records = check_implementation(swapped, properties=["gradient/mlp/silu"], examples=20)
    assert [r.verdict for r in records] == [Verdict.VIOLATED]


def test_a_parameter_that_gets_no_weight_is_an_error_and_not_a_random_number() -> None:
    partial = module_implementation({"V": "gate_proj.weight", "W": "up_proj.weight"})
    (record,) = check_implementation(partial, properties=["gradient/mlp/silu"], examples=5)
    assert record.reason is not None
    assert "parameters down_proj.weight get no weight" in record.reason


def test_a_misspelt_weight_is_refused_with_those_there_are() -> None:
    with pytest.raises(ValueError, match=r"names contains W_k; the weights are .*W_K"):
        module_implementation({"W_k": "gate_proj.weight"})


@pytest.mark.parametrize("options", [{"dim": True}, {"dim": 0}, {"dim": 2, "step_size": float("nan")}], ids=str)
def test_an_energy_layer_of_impossible_numbers_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="an energy layer"):
        energy_layer(update=lambda x, m: x, **options)


def test_a_class_is_not_an_implementation_but_its_instance_may_be() -> None:
    class Mine:
        mlp = staticmethod(reference.mlp)

    with pytest.raises(LoadError, match="is a class: give an instance of it"):
        as_subject(Mine)
    assert "mlp" in as_subject(Mine()).functions  # type: ignore[union-attr]


def test_a_weight_that_fits_no_parameter_is_named() -> None:
    wrong = module_implementation({"V": "gate.weight", "W": "up_proj.weight"})
    (record,) = check_implementation(wrong, properties=["gradient/mlp/silu"], examples=5)
    assert record.reason is not None
    assert "no parameter 'gate.weight' for V" in record.reason


def test_an_energy_layer_that_descends_its_energy_holds() -> None:
    def energy(x: Tensor, memory: Tensor) -> Tensor:
        return ((x - memory.cumsum(1)) ** 2).sum(-1) / 2

    layer = energy_layer(update=lambda x, m: 0.5 * (m.cumsum(1) - x), energy=energy, dim=3, step_size=0.5)
    assert verdicts(check_implementation(layer, examples=20)) == {Verdict.HOLDS, Verdict.NOT_OFFERED}


def test_a_steep_layer_that_descends_its_energy_holds() -> None:
    layer = energy_layer(
        update=lambda x, m: -5000 * (x - m), energy=lambda x, m: 2500 * ((x - m) ** 2).sum(-1), dim=2
    )
    assert verdicts(check_implementation(layer, examples=20)) == {Verdict.HOLDS, Verdict.NOT_OFFERED}


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


def test_an_untied_attention_layer_has_no_conservative_field() -> None:
    generator = torch.Generator().manual_seed(0)
    W_Q, W_K, W_V, W_O = (torch.randn(1, 3, 4, generator=generator, dtype=torch.float64) for _ in range(4))

    def update(x: Tensor, memory: Tensor) -> Tensor:
        q, k, v = (torch.einsum("bjd,krd->bkjr", a, W) for a, W in ((x, W_Q), (memory, W_K), (memory, W_V)))
        return torch.einsum("bkjr,krd->bjd", F.scaled_dot_product_attention(q, k, v, is_causal=True), W_O)

    records = {r.id: r for r in check_implementation(energy_layer(update=update, dim=4), examples=20)}
    assert records["gradient/layer/conservative-field"].verdict == Verdict.VIOLATED
    assert records["structure/layer/causality"].verdict == Verdict.HOLDS
    assert records["gradient/layer/energy"].verdict == Verdict.NOT_OFFERED


def test_an_implementation_that_only_decodes_is_compared_with_the_golden_answer() -> None:
    def longer(h: Tensor, weights: Any, config: Any) -> Tensor:
        return reference.decode(h, weights, replace(config, step_size=1.01 * config.step_size))

    for decode, verdict in ((reference.decode, Verdict.HOLDS), (longer, Verdict.VIOLATED)):
        (record,) = check_implementation(
            implementation(decode=decode), properties=["structure/decode/every-prefix"], examples=20
        )
        assert record.verdict == verdict


def test_an_implementation_may_make_one_thread_wait_for_another() -> None:
    lock = threading.Lock()

    def one_at_a_time(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:
        with lock:
            return reference.mlp(x, h, weights, config)

    (record,) = check_implementation(
        implementation(mlp=one_at_a_time), properties=["contract/mlp/threads"], examples=2
    )
    assert record.verdict == Verdict.HOLDS, record


def test_a_case_survives_whatever_the_implementation_does_to_its_arrays() -> None:
    case = dense_case(MLPConfig(4, 6), 1, 3, 0)
    before = golden(case)

    def vandal(x: Tensor, h: Tensor, weights: dict[str, Tensor], config: Any) -> Tensor:
        for array in (x, h, *weights.values()):
            array.zero_()
        return x

    Caller(implementation(mlp=vandal)).output(case)
    assert torch.equal(golden(case), before)
