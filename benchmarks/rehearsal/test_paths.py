"""Every path of the reference, each run once on a simulated GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, get_args

import pytest
import torch
from torch import Tensor, nn

from benchmarks.rehearsal.watching import Watch, a_gpu
from cemverify.cem import blocked, presets
from cemverify.cem.activations import ACTIVATIONS
from cemverify.cem.beyond import Beyond
from cemverify.cem.layers import (
    AttentionConfig,
    CEMAttention,
    CEMGatedMLP,
    DiagonalKind,
    LayerConfig,
    MLPConfig,
    PositionKind,
    PreconditionerConfig,
)
from cemverify.cem.llama import LlamaAttentionConfig, SwiGLUConfig
from cemverify.cem.models import Block, BlockConfig, LanguageModel, LanguageModelConfig
from cemverify.cem.norms import NormKind
from cemverify.conformance.implementations import fast, reference
from cemverify.conformance.questions.cases import weight_shapes
from cemverify.conformance.questions.coverage import covering
from synthetic.gp.tasks import Stream, Streams
from synthetic.studies.recursion import ensembles
from synthetic.studies.recursion.regressors import CEMSpec, DrawnSpec, GatedMLPSpec, RegressorStack
from synthetic.training import steps as probes
from synthetic.training.frames import shared_preconditioners
from synthetic.training.machine import Machine
from synthetic.training.recipe import Recipe
from synthetic.training.training import adamw, train, update

# Makes its inputs, clears the watch, runs, and returns tensors that must be on the GPU.
Run = Callable[[Watch], list[Tensor]]

B, J, D, K, R, M = 2, 24, 16, 2, 8, 32


@dataclass(frozen=True)
class Path:
    """One way through the code."""

    area: str  # such as "training"
    name: str  # what it is
    run: Run  # runs it; what it creates is on the GPU
    waits: bool = False  # whether the CPU may wait for the GPU; never in a training step or in a layer
    narrow: bool = False  # whether all its matrix products must be in bfloat16


def faults(path: Path) -> list[str]:
    """What is wrong with a path, one sentence each; it gets a new simulated GPU."""
    sentences, watch = [], Watch()
    try:
        with a_gpu() as watch:
            results = path.run(watch)
            sentences += [f"its result is on the {t.device.type}" for t in results if not t.is_cuda]
    except Exception as error:
        sentences.append(f"{type(error).__name__}: {' '.join(str(error).split())[:160]}")
    if not path.waits:
        sentences += [f"{wait}, {count} times" for wait, count in watch.waits.items()]
    if path.narrow and (wide := watch.products[torch.float32]):
        sentences.append(f"products in float32, {wide} times")
    return sentences


# --- layers -------------------------------------------------------------------------------------------------


def _preconditioners(per_head: bool) -> list[PreconditionerConfig]:
    kinds = [PreconditionerConfig()]
    for kind in ("diagonal", "low-rank", "low-rank-printed"):
        kinds += [PreconditionerConfig(kind, 2, own) for own in ((False, True) if per_head else (False,))]
    return kinds


def _rows(**options: Sequence[Any]) -> Iterator[dict[str, Any]]:
    """A few rows in which every pair of values of any two options occurs."""
    for row in covering(tuple(map(len, options.values()))):
        yield {name: values[i] for (name, values), i in zip(options.items(), row, strict=True)}


_STEPS: Mapping[str, Sequence[Any]] = {
    "norm": get_args(NormKind),
    "step": ("fixed", "learned"),
    "steps": (1, 2, 3, 8),
}


def _layers(area: str, made: Callable[..., LayerConfig], **options: Sequence[Any]) -> Iterator[Path]:
    """Layers with these options, by every path and in every precision."""
    for row in _rows(**options, path=get_args(blocked.Path), precision=("float32", "bfloat16", "autocast")):
        name, path, precision = _of(row), row.pop("path"), row.pop("precision")
        yield Path(area, name, partial(_layer, made(**row), path, precision), narrow=precision != "float32")


def _attention() -> Iterator[Path]:
    yield from _layers(
        "attention",
        partial(AttentionConfig, D, K),
        diagonal=get_args(DiagonalKind),
        position=get_args(PositionKind),
        preconditioner=_preconditioners(per_head=True),
        **_STEPS,
        causal=(True, False),
    )


def _mlp() -> Iterator[Path]:
    yield from _layers(
        "mlp",
        partial(MLPConfig, D, M),
        activation=tuple(ACTIVATIONS),
        preconditioner=_preconditioners(per_head=False),
        **_STEPS,
    )


def _of(row: Mapping[str, Any]) -> str:
    """The options of a row in words."""
    words = {name: value for name, value in row.items() if not isinstance(value, PreconditionerConfig)}
    P = row["preconditioner"]
    return f"{P.kind}{' per head' if P.per_head else ''} {' '.join(f'{n}={v}' for n, v in words.items())}"


def _beyond() -> Iterator[Path]:
    for name, beyond in (
        ("momentum", Beyond(momentum=0.5)),
        ("learned momentum", Beyond(momentum=0.5, learn_momentum=True)),
        ("steps of their own", Beyond(own_steps=True)),
        ("preconditioners of their own", Beyond(own_preconditioners=True)),
        ("cooling", Beyond(cooling=0.9)),
    ):
        shared: dict[str, Any] = {"preconditioner": PreconditionerConfig("diagonal"), "steps": 3, "step": "learned"}
        shared |= {"norm": "channel", "beyond": beyond}
        attention = AttentionConfig(D, K, diagonal="shared", position="alibi", **shared)
        yield Path("beyond", f"attention, {name}", partial(_layer, attention, None, "autocast"), narrow=True)
        if beyond.cooling == 1:
            run = partial(_layer, MLPConfig(D, M, **shared), None, "autocast")
            yield Path("beyond", f"MLP, {name}", run, narrow=True)
    for config in (AttentionConfig(D, K, steps=3), MLPConfig(D, M, steps=3)):
        yield Path(
            "beyond", f"tokens that stop, {type(config).__name__}", partial(_layer, config, None, "float32", fall=0.1)
        )


def _layer(
    config: LayerConfig, path: blocked.Path | None, precision: str, watch: Watch, *, fall: float = 0.0
) -> list[Tensor]:
    """A layer forward and backward, to its input and to every parameter."""
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    layer = _built(config).to(dtype)
    layer.set_steps(config.steps, config.step_size, fall) if fall else None
    h = torch.zeros(B, J, D, dtype=dtype, requires_grad=True)
    watch.waits.clear()
    taken = nullcontext() if path is None else blocked.using(path, rows=10, tile=4)
    with torch.autocast("cuda", torch.bfloat16, enabled=precision == "autocast"), taken:
        out = layer.residual(h)
    out = out[0] if isinstance(out, tuple) else out
    _check(out, h, "a layer's output")
    out.sum().backward()
    return [out, *_gradients(layer, h)]


def _built(config: LayerConfig) -> Any:
    kind: Any = CEMAttention if isinstance(config, AttentionConfig) else CEMGatedMLP
    return kind(config, torch.Generator("cpu"))


def _gradients(module: nn.Module, *inputs: Tensor) -> list[Tensor]:
    gradients = []
    for name, tensor in [*module.named_parameters(), *(("its input", t) for t in inputs)]:
        if tensor.grad is not None:
            _check(tensor.grad, tensor, f"the gradient of {name}")
            gradients.append(tensor.grad)
    return gradients


def _check(tensor: Tensor, like: Tensor, name: str) -> None:
    """Raises if a tensor has not the shape and the dtype of another."""
    if tensor.shape != like.shape or tensor.dtype != like.dtype:
        raise TypeError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {like.dtype} {tuple(like.shape)}")


# --- energies, blocks, models -------------------------------------------------------------------------------


def _energies() -> Iterator[Path]:
    for diagonal, position in itertools.product(get_args(DiagonalKind), get_args(PositionKind)):
        config = AttentionConfig(D, K, diagonal=diagonal, position=position, steps=2)
        yield Path("energies", f"trajectory of attention, {diagonal}, {position}", partial(_trajectory, config))
    for sigma in ACTIVATIONS:
        # the value of the energy needs quadrature nodes from the CPU; training does not
        waits = sigma == "gelu-tanh"
        yield Path(
            "energies", f"trajectory of an MLP, {sigma}", partial(_trajectory, MLPConfig(D, M, sigma, steps=2)), waits
        )


def _trajectory(config: LayerConfig, watch: Watch) -> list[Tensor]:
    layer, h = _built(config), torch.zeros(B, J, D, requires_grad=True)
    watch.waits.clear()
    trajectory = layer.trajectory(h)
    (gradient,) = torch.autograd.grad(trajectory.energies.sum(), h)
    return [
        trajectory.states,
        trajectory.energies,
        gradient,
        layer.energy.curvature(layer.energy.remember(h)).upper,
    ]


def _blocks() -> Iterator[Path]:
    for rounds in (1, 2):
        config = BlockConfig(
            AttentionConfig(D, K, diagonal="shared", position="alibi", norm="channel", steps=2),
            MLPConfig(D, M, norm="channel", steps=2),
            rounds,
        )
        yield Path("blocks", f"CEM, {rounds} round(s)", partial(_block, config), narrow=True)
    for position in ("none", "rotary", "alibi"):
        llama = BlockConfig(LlamaAttentionConfig(D, K, position), SwiGLUConfig(D, M))
        yield Path("blocks", f"Llama, {position}", partial(_block, llama), narrow=True)


def _block(config: BlockConfig, watch: Watch) -> list[Tensor]:
    block, h = Block(config, torch.Generator("cpu")), torch.zeros(B, J, D, requires_grad=True)
    watch.waits.clear()
    with torch.autocast("cuda", torch.bfloat16):
        out, _ = block(h)
    _check(out, h, "a block's output")
    out.sum().backward()
    return [out, *_gradients(block, h)]


def _small(steps: int | None) -> LanguageModelConfig:
    """A model of the paper's kind with two small layers; None is Llama."""
    config = presets.llama("86M") if steps is None else presets.full_cem("86M", steps)
    attention: Any = replace(config.block.attention, dim=D, heads=K)
    mlp: Any = replace(config.block.mlp, dim=D, hidden=M)
    return replace(config, vocabulary=64, layers=2, block=BlockConfig(attention, mlp))


def _decoding() -> Iterator[Path]:
    for steps, graded in itertools.product((None, 1, 2, 4), (False, True)):
        name = "Llama" if steps is None else f"full CEM, T={steps}"
        yield Path(
            "decoding", f"{name}, {'with' if graded else 'without'} gradients", partial(_generated, steps, graded)
        )


def _generated(steps: int | None, graded: bool, watch: Watch) -> list[Tensor]:
    """The most likely continuation, token by token from the cache."""
    model = LanguageModel(_small(steps), torch.Generator("cpu"))
    watch.waits.clear()
    with torch.set_grad_enabled(graded):
        logits, cache = model.decode(torch.zeros(B, J, dtype=torch.int64))
        results = [logits]
        for _ in range(4):
            logits, cache = model.decode(logits[:, -1:].argmax(-1), cache)
            results.append(logits)
    return results


# --- training -----------------------------------------------------------------------------------------------


def _training() -> Iterator[Path]:
    # accumulation, precision, clipping and optimiser as in the paper's Table 2
    kinds = {"Llama": _small(None), **{f"full CEM, T={T}": _small(T) for T in (1, 2, 4, 8)}}
    kinds |= {f"CEM of the studies, T={T}": shared_preconditioners(_small(T)) for T in (1, 2, 4, 8)}
    for name, config in kinds.items():
        yield Path("training", f"a step of {name}, bfloat16", partial(_step, config, "bfloat16"), narrow=True)
    yield Path("training", "a step of full CEM, T=2, float32", partial(_step, _small(2), "float32"))
    yield Path("training", "two steps with what lies between them", _trained, waits=True)
    yield Path("training", "probes of the steps of a layer", _probed, waits=True)


def _step(config: LanguageModelConfig, precision: Any, watch: Watch) -> list[Tensor]:
    model, recipe = LanguageModel(config, torch.Generator("cpu")), _recipe(precision)
    optimiser = adamw(model, recipe)
    watch.waits.clear()
    norms = [update(model, model, optimiser, _WINDOWS, recipe, Machine("cuda")) for _ in range(2)]
    return [*norms, *model.parameters()]


def _recipe(precision: Any) -> Recipe:
    return Recipe(2, batch=4, context=J, accumulate=2, precision=precision)


_WINDOWS = torch.zeros(4, J + 1, dtype=torch.int64)  # a real tensor on the CPU, like batches


def _trained(watch: Watch) -> list[Tensor]:
    model = LanguageModel(_small(2), torch.Generator("cpu"))
    watch.waits.clear()
    train(model, _recipe("bfloat16"), lambda _: _WINDOWS, Machine("cuda"))  # type: ignore[arg-type]
    return list(model.parameters())


def _probed(_: Watch) -> list[Tensor]:
    model = LanguageModel(_small(2), torch.Generator("cpu"))
    probes.steps_of(model, torch.zeros(B, J, dtype=torch.int64))
    return list(model.parameters())


def _regressors() -> Iterator[Path]:
    specs = {
        "CEM, T=2": CEMSpec(D, M, 2, norm="channel", preconditioner="low-rank", step_size="learned"),
        "CEM with a T for each batch": DrawnSpec(D, M, 4, step_size="1/T"),
        "gated MLP applied twice": GatedMLPSpec(D, M, 2),
    }
    for name, spec in specs.items():
        # it waits at every evaluation on the held-out points
        yield Path("regressors", f"fitting three at once: {name}", partial(_fitted, spec), waits=True)


def _fitted(spec: Any, watch: Watch) -> list[Tensor]:
    streams = [Streams(0, "rbf", seed) for seed in range(3)]
    with torch.device("cpu"):
        stack = RegressorStack(spec, 10, streams)
    model: Any = stack.to("cuda")
    recipe = ensembles.Recipe(4, batch=16, check_every=2, device="cuda")
    generators = [s.generator(Stream.BATCHES) for s in streams]
    watch.waits.clear()
    ensembles.fit(model, torch.zeros(3, 64, 10), torch.zeros(3, 64), recipe, generators)
    return list(model.parameters())


# --- what the verifier judges -------------------------------------------------------------------------------


def _contract() -> Iterator[Path]:
    """The reference and the fast path through the contract; they validate their arguments, so the CPU waits."""
    options = {"norm": get_args(NormKind), "steps": (1, 3)}
    for name, judged in (("reference", reference.reference), ("fast", fast.fast)):
        for row in _rows(
            diagonal=get_args(DiagonalKind),
            position=get_args(PositionKind),
            preconditioner=_preconditioners(per_head=True),
            **options,
        ):
            attention = partial(_judged, judged, AttentionConfig(D, K, **row))
            yield Path("contract", f"{name}, attention {_of(row)}", attention, waits=True)
        for row in _rows(preconditioner=_preconditioners(per_head=False), **options):
            yield Path(
                "contract", f"{name}, MLP {_of(row)}", partial(_judged, judged, MLPConfig(D, M, **row)), waits=True
            )


def _judged(judged: Any, config: Any, _: Watch) -> list[Tensor]:
    x, h = (torch.zeros(B, J, D, requires_grad=True) for _ in range(2))
    weights = {name: torch.zeros(shape, requires_grad=True) for name, shape in weight_shapes(config).items()}
    kind = "attention" if isinstance(config, AttentionConfig) else "mlp"
    results = [judged.functions[kind](x, h, weights, config)]
    if f"{kind}_energy" in judged.functions:
        results.append(judged.functions[f"{kind}_energy"](x, h, weights, config))
    if kind == "attention":
        results.append(judged.functions["decode"](h, weights, config))
    gradients = torch.autograd.grad(results[0].sum(), [x, h, *weights.values()], allow_unused=True)
    return [*results, *(g for g in gradients if g is not None)]


# --- the tests ----------------------------------------------------------------------------------------------

AREAS = (_attention, _mlp, _beyond, _energies, _blocks, _decoding, _training, _regressors, _contract)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "path" in metafunc.fixturenames:
        each = metafunc.config.getoption("--each")
        sample = [path for area in AREAS for path in list(area())[::each]]
        metafunc.parametrize("path", sample, ids=lambda path: f"{path.area}: {path.name}")


def test_a_path_would_run_on_a_gpu(path: Path) -> None:
    assert faults(path) == []


def _wide(_: Watch) -> list[Tensor]:
    with torch.autocast("cuda", torch.bfloat16), torch.autocast("cuda", enabled=False):
        return [torch.ones(2, 2) @ torch.ones(2, 2)]


# words of a fault, and a path that has it
WRONG: Mapping[str, Run] = {
    "cuda:0 and cpu": lambda _: [torch.ones(2) + torch.ones(2, device="cpu")],
    "its result is on the cpu": lambda _: [torch.ones(2, device="cpu")],
    "reads a value": lambda _: [(x := torch.ones(2)) * x.sum().item()],
    "DynamicOutputShapeException": lambda _: [(x := torch.ones(2))[x > 0]],
    "copies between CPU and GPU": lambda _: [torch.ones(2).new_tensor([1.0, 2.0])],
    "products in float32, 1 times": _wide,
}


@pytest.mark.parametrize("words", WRONG)
def test_what_a_gpu_refuses_or_waits_for_is_a_fault(words: str) -> None:
    """Without these the test above could not fail."""
    assert words in " ".join(faults(Path("wrong", words, WRONG[words], narrow=True)))
