"""Kinds of implementation, absent features, array kinds and adapters."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from cemverify import check_implementation, energy_layer, implementation, implementation_from_modules
from cemverify.api import Check, parametrize_with_properties
from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.layers import AttentionConfig, MLPConfig
from cemverify.cem.torch_internals import is_batched
from cemverify.conformance.implementations import reference
from cemverify.conformance.implementations.contract import Subject, as_subject, load
from cemverify.conformance.implementations.named_parameters import load_weights
from cemverify.conformance.implementations.naming import LoadError
from cemverify.conformance.implementations.origin import Origin, Place, origin_of
from cemverify.conformance.judging.verdicts import Record, Verdict
from examples.fused_modules import MLP
from examples.mlp_module import GatedMLP
from suites.kit.examples import known
from suites.kit.judging import judged

LEAN = ("steps", "diagonal", "position", "preconditioner", "norm", "validation")


def verdicts(records: Sequence[Record]) -> set[Verdict]:
    return {record.verdict for record in records}


def asked(**options: Any) -> object:
    return check_implementation(reference.reference, **options)


@pytest.mark.parametrize(
    ("declare", "sentence"),
    [
        (lambda: implementation(mlp=len, not_offered=["rotary"]), "unknown feature .rotary.; choose from .*position"),
        (lambda: implementation(attention=reference.attention, not_offered="norm"), "collection of names"),
        (implementation, "at least one of: attention, mlp"),
        (lambda: implementation(mlp=len, arrays=["numpy"]), "arrays must be 'torch'"),  # type: ignore[arg-type]
        (lambda: as_subject({}), "is a dict, not an implementation"),
        (lambda: as_subject(Mine), "is a class: give an instance of it"),
        (lambda: module_implementation({"W_k": "gate_proj.weight"}), r"names contains W_k; the weights are .*W_K"),
        *((lambda name=name: module_implementation({"V": name}), "a Python slice of the parameter, in the letters D")
          for name in ("gate_proj.weight[:H]", "gate_proj.weight[:M]T")),
        *((lambda options=options: implementation_from_modules(**{"mlp": GatedMLP, **options}), sentence)
          for options, sentence in (
              ({"names": {"V": 5}}, "a parameter's name, or a tuple of names, not 5"),
              ({"names": ["V"]}, r"names must map weights to parameters, not \['V'\]"),
              ({"free": "bias"}, r"free must be a collection of names: write \('bias',\)"),
              ({"not_offered": None}, "not_offered must be a collection of names"),
              ({"prefill": 5}, "prefill must be a module's class, or a function that builds one, not 5"))),
        *((lambda options=options: energy_layer(update=lambda x, m: x, **options), "(dim|energy layer) must be")
          for options in ({"dim": True}, {"dim": 0}, {"dim": 2, "step_size": float("nan")})),
        # what cannot be asked
        (lambda: check_implementation(torch.nn.Linear(2, 2)),
         "a Linear, not an implementation: make one with cemverify.implementation_from_modules"),
        (lambda: check_implementation(len), r"not an implementation: make one with cemverify.implementation\("),
        (lambda: check_implementation(3), "an int, not an implementation"),
        (lambda: asked(properties="gradient/attention/plain"), r"write \('gradient/attention/plain',\)"),
        *((lambda wrong=wrong: asked(examples=wrong), "examples must be a whole number of at least 1")
          for wrong in ("ten", 0, 2.5, True)),
        (lambda: parametrize_with_properties(reference.reference, known="known.toml"), "known violations are listed"),
        (lambda: parametrize_with_properties(reference.reference, save_counterexamples="found"), "names its impl"),
    ],
)  # fmt: skip
def test_what_cannot_be_declared_or_asked_is_refused(declare: Callable[[], object], sentence: str) -> None:
    with pytest.raises((ValueError, LoadError), match=sentence):
        declare()


class Mine:
    """A class whose instances are implementations."""

    mlp = staticmethod(reference.mlp)
    not_offered = ("norm",)


def test_an_object_with_the_functions_as_attributes_is_an_implementation() -> None:
    assert set(as_subject(Mine()).not_offered) >= {"attention", "norm:scalar"}


def test_a_call_in_jax_that_deletes_what_it_was_given_is_violated() -> None:
    jax = pytest.importorskip("jax", reason="the extra `jax` is not installed")
    jax.config.update("jax_enable_x64", False)  # layers imported by another test may have set it

    def mlp(x: Any, h: Any, weights: Any, config: Any) -> Any:
        moved = x + config.step_size * (jax.nn.silu(x @ weights["V"].T) * (h @ weights["W"].T)) @ weights["V"]
        x.delete()  # like a function compiled with donate_argnums
        return moved

    record = judged(implementation(mlp=mlp, arrays="jax", not_offered=LEAN), "gradient/mlp/silu", shrink=False)
    assert not jax.config.jax_enable_x64
    assert (record.verdict, record.cause) == (Verdict.VIOLATED, "deleted")


def test_a_block_in_jax_is_asked_what_its_calls_leave_alone() -> None:
    pytest.importorskip("jax", reason="the extra `jax` is not installed")
    blocks = load("suites.blind.faults:base_jax")
    assert judged(blocks, "contract/block/settings-unchanged", examples=2).verdict == Verdict.HOLDS


def module_implementation(names: dict[str, str | tuple[str, ...]], mlp: Any = GatedMLP) -> Any:
    activations = tuple(f"activation:{name}" for name in ACTIVATIONS if name != "silu")
    absent = (*LEAN, "start", "step-size", *activations)
    return implementation_from_modules(mlp=mlp, names=names, not_offered=absent)


def test_keys_of_fewer_heads_are_refused_in_the_words_of_the_contract() -> None:
    grouped = torch.nn.ParameterDict({"W_K": torch.empty(2, 4)})
    with pytest.raises(ValueError, match="the contract has as many key heads as query heads"):
        load_weights(grouped, {"W_K": torch.ones(2, 2, 4)}, {}, {"D": 4, "K": 2, "R": 2})


class Cached(torch.nn.Module):
    """Attention that reads a row in pieces; the mask of a piece may ignore the cached tokens before it."""

    def __init__(self, c: AttentionConfig, *, forgets: bool) -> None:
        super().__init__()
        self.W_Q, self.W_K = (torch.nn.Parameter(torch.empty(c.heads, c.R, c.dim)) for _ in range(2))
        self.scale, self.forgets = c.step_size, forgets

    def forward(self, h: Tensor, cache: Tensor | None) -> tuple[Tensor, Tensor]:
        q, k = (torch.einsum("bjd,krd->bkjr", h, W) for W in (self.W_Q, self.W_K))
        k = k if cache is None else torch.cat((cache, k), 2)
        past = 0 if self.forgets and h.shape[1] > 1 else k.shape[2] - h.shape[1]
        hidden = torch.ones(h.shape[1], k.shape[2]).triu(1 + past).bool()
        a = (q @ k.mT / k.shape[-1] ** 0.5).masked_fill(hidden, -torch.inf).softmax(-1)
        return h + self.scale * torch.einsum("bkjr,krd->bjd", a @ k, self.W_Q), k


def test_a_module_that_reads_a_row_in_pieces_is_decoded_and_asked_for_them() -> None:
    """Token by token, both versions are right."""
    absent = ("steps", "temperature", "diagonal", "position", "preconditioner", "norm")
    for forgets, verdict in ((False, Verdict.HOLDS), (True, Verdict.VIOLATED)):
        build = functools.partial(Cached, forgets=forgets)
        cached = implementation_from_modules(prefill=build, not_offered=absent)
        assert judged(cached, "structure/decode/cached-equals-uncached-plain").verdict == Verdict.HOLDS
        assert judged(cached, "structure/decode/pieces", examples=40).verdict == verdict


DOWN, PART = "down_proj.weight.T", "gate_up_proj.weight[:M]"
WHOLE = ("gate_up_proj.weight", DOWN)


@pytest.mark.parametrize(
    ("module", "names", "words"),
    [
        (GatedMLP, {"W": "gate_proj.weight", "V": ("up_proj.weight", DOWN)}, ""),  # as in the paper
        (GatedMLP, {"V": "gate_proj.weight", "W": "up_proj.weight"}, "parameters down_proj.weight get no weight"),
        (GatedMLP, {"V": "gate.weight", "W": "up_proj.weight"}, "no parameter 'gate.weight' for V"),
        (MLP, {"V": ("gate_up_proj.weight[M:]", DOWN), "W": PART}, "update = -eta P grad energy"),
        (MLP, dict.fromkeys("VW", WHOLE), f"several weights, give each its part, as in '{PART}'"),
        (MLP, {"V": (PART, DOWN), "W": PART}, "has entries that another weight already fills"),
        (MLP, {"V": (PART, DOWN), "W": ()}, "parameters gate_up_proj.weight (in part) get no weight"),
        (MLP, {"V": ("gate_up_proj.weight[0, :, :]", DOWN), "W": ()}, "does not fit shape"),
    ],
)
def test_a_module_whose_weights_go_elsewhere_is_violated(module: Any, names: dict[str, Any], words: str) -> None:
    record = judged(module_implementation(names, module), "gradient/mlp/silu", examples=20, shrink=False)
    assert record.verdict == Verdict.VIOLATED
    assert words in str(record.reason)


@pytest.mark.parametrize(("noise", "verdict"), [(0.0, Verdict.HOLDS), (1e-3, Verdict.VIOLATED)])
def test_a_mapped_call_may_build_a_module_and_may_not_add_noise(noise: float, verdict: Verdict) -> None:
    def mlp(x: Tensor, h: Tensor, weights: Any, config: MLPConfig) -> Tensor:
        V, W = weights["V"], weights["W"]
        fused = {"gate_up_proj.weight": torch.cat([V, W]), "down_proj.weight": V.T}
        out: Tensor = functional_call(MLP(config), fused, (h,))
        return out + noise * torch.randn(()) if is_batched(h) else out

    layer = implementation(mlp=mlp, not_offered=module_implementation({}).not_offered.keys() - {"vmap"})
    record = judged(layer, "modes/mlp/vmap", examples=6)
    assert record.verdict == verdict, record.reason


def test_a_relu_layer_holds_at_the_kink() -> None:
    generator = torch.Generator().manual_seed(4)
    V, W = (torch.randn(2, 4, generator=generator, dtype=torch.float64) for _ in range(2))
    V = 30 * V * torch.tensor([0.001, 1, 1, 1], dtype=torch.float64)

    def energy(x: Tensor, memory: Tensor) -> Tensor:
        return -((memory @ W.T) * F.relu(x @ V.T) ** 2 / 2).sum(-1)

    layer = energy_layer(update=lambda x, m: ((m @ W.T) * F.relu(x @ V.T)) @ V, energy=energy, dim=4)
    assert judged(layer, "gradient/layer/conservative-field", examples=200, seed=4).verdict == Verdict.HOLDS


def test_a_layer_that_reads_only_h_is_asked_to_refuse_bad_h() -> None:
    subject = implementation(attention=lambda x, h, w, c: reference.attention(h, h, w, c), not_offered=("start",))
    records = check_implementation(subject, properties=["rejection/attention"], examples=8)
    assert verdicts(records) == {Verdict.HOLDS, Verdict.NOT_OFFERED}


def test_an_implementation_may_make_one_thread_wait_for_another() -> None:
    lock = threading.Lock()

    def one_at_a_time(x: Tensor, h: Tensor, weights: Any, config: Any) -> Tensor:
        with lock:
            return reference.mlp(x, h, weights, config)

    record = judged(implementation(mlp=one_at_a_time), "contract/mlp/threads", examples=2)
    assert record.verdict == Verdict.HOLDS, record


HERE = "suites/conformance/test_contract.py"


def own(x: torch.Tensor, *_: object) -> torch.Tensor:
    return x


class Layer(torch.nn.Module):
    """A layer that is defined in this file, and not in a library."""

    def forward(self, x: torch.Tensor, *_: object) -> torch.Tensor:
        return x


@functools.wraps(own)
def wrapped(*arguments: torch.Tensor) -> torch.Tensor:
    return own(*arguments)


def built(config: AttentionConfig) -> Layer:
    return Layer()


@pytest.mark.parametrize(
    "function", [own, functools.partial(own), wrapped, torch.vmap(own), Layer(), Layer().forward]
)
def test_a_function_is_found_behind_what_wraps_it(function: Any) -> None:
    place = origin_of(implementation(attention=function)).places["attention"]
    assert (place.file, place.name) == (HERE, "Layer.forward" if "Layer" in str(function) else "own")


@pytest.mark.parametrize("builder", [lambda config: Layer(), built, lambda config: built(config)])
def test_the_layers_behind_an_adapter_are_found(builder: Callable[[AttentionConfig], Layer]) -> None:
    place = origin_of(implementation_from_modules(attention=builder)).places["attention"]
    assert (place.file, place.name) == (HERE, "Layer.forward")


@pytest.mark.parametrize("function", [max, torch.relu, type("Odd", (), {"__call__": max})()])
def test_what_has_no_lines_has_no_place_and_no_digest(function: object) -> None:
    assert not origin_of(energy_layer(update=function, dim=2)).places  # type: ignore[arg-type]


def test_the_digest_follows_the_files_and_what_they_import_from_beside_them(here: Path) -> None:
    main = "import beside\nfrom cemverify import implementation\n"
    main += "def attention(x, *_): return beside.f(x)\nmine = implementation(attention=attention)\n"
    (here / "before_and_after.py").write_text(main)

    def origin(beside: str) -> Origin:
        (here / "beside.py").write_text(beside)
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
    of_here, of_there = ([(r.id, r.verdict, r.margin, r.examples) for r in run.records] for run in (here, there))
    assert of_here == of_there
    assert there.origin.places == here.origin.places == origin_of(subject).places
    assert there.origin.places["update"].file == "suites/conformance/wrong_layers.py"
    assert there.origin.digest is not None


pytest_plugins = ["pytester"]


def test_two_lines_make_one_test_per_property(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from cemverify import parametrize_with_properties, implementation
        from cemverify.conformance.implementations import reference

        def mlp(x, h, w, c):
            return reference.mlp(x, h, w, c) * (1.001 if c.activation == "tanh" else 1)

        mine = implementation(mlp=mlp, not_offered=("norm",))

        @parametrize_with_properties(mine, properties=["gradient/mlp"], examples=10)
        def test_mlp(check): check()
        """
    )
    result = pytester.runpytest("-p", "no:cacheprovider", "-rA")
    outcomes = result.parseoutcomes()
    assert outcomes["failed"] == 2  # tanh, and the property with all options, which includes tanh
    assert (outcomes["passed"] >= 10, outcomes["skipped"] >= 3) == (True, True)
    result.stdout.fnmatch_lines(["*VIOLATED gradient/mlp/tanh*", "*SKIPPED*not offered: *norm:scalar: declared*"])


@pytest.mark.parametrize(("own", "expected"), [("", 1), ("3", 3)])
def test_a_judgement_here_computes_on_one_thread_or_as_many_as_the_user_says(
    monkeypatch: pytest.MonkeyPatch, own: str, expected: int
) -> None:
    seen = set()

    def mlp(*question: Any) -> torch.Tensor:
        seen.add(torch.get_num_threads())
        return reference.mlp(*question)

    monkeypatch.setenv("OMP_NUM_THREADS", own)
    usual, layer = torch.get_num_threads(), implementation(mlp=mlp)
    torch.set_num_threads(3)
    try:
        mark_of("contract/mlp/determinism", implementation=layer)()
        check_implementation(layer, properties=["contract/mlp/determinism"], examples=3)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(usual)
    assert seen == {expected}


def mark_of(property_: str, path: Path | None = None, implementation: Any = "reference") -> Check:
    """The single check that the decorator makes for a property."""
    mark: Any = parametrize_with_properties(implementation, properties=[property_], examples=3, known=path)
    check: Check = mark.args[1][0].values[0]
    return check


def test_a_stale_entry_fails_its_own_test_and_what_is_undecided_can_be_asked_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "known.toml"
    path.write_text(known("contract/mlp/determinism", implementation="reference"))
    with pytest.raises(pytest.fail.Exception, match="holds again; delete the entry on line 1"):
        mark_of("contract/mlp/determinism", path)()
    other = mark_of("contract/mlp/shape-and-dtype", path)
    assert other().verdict == "holds"
    undecided = Record(other.property.id, "claim", "source", Verdict.INCONCLUSIVE, reason="too few")
    monkeypatch.setattr("cemverify.api.judge_property", lambda *_: undecided)
    with pytest.raises(pytest.fail.Exception, match=r"too few\nagain: cemverify check reference .*shape-and-dtype"):
        other()
