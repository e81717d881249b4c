"""Kernels and bytes of a training step, part by part: counted on fake tensors, and as torch's compiler plans them.

    python -m benchmarks.rehearsal.traffic FILE       the paper's 86M models, as JSON, or as a page, FILE.md

The time of a step that is bound by memory bandwidth follows from its traffic. Without a compiler, every operation
reads its inputs and writes its output. With a compiler, `planned` gets Inductor's plan without generating code. It is
the plan for a CPU, because the plan for a GPU needs a GPU. Both are predictions until a GPU has run the step.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.rehearsal.absent_gpu import stand_in

if __name__ == "__main__":
    stand_in()  # before torch

import torch
from torch import Tensor

from benchmarks import attention
from benchmarks.rehearsal.watching import a_gpu
from benchmarks.training import without_diagonal
from cemverify.cem import blocked, presets
from cemverify.cem.energies import features
from cemverify.cem.layers import CEMAttention
from cemverify.cem.models import Block, LanguageModel, LanguageModelConfig
from cemverify.cem.torch_internals import TorchDispatchMode, tree_leaves
from cemverify.results.envelope import Table
from cemverify.results.tables import markdown
from synthetic.training.cost import parameters
from synthetic.training.frames import shared_preconditioners
from synthetic.training.recipe import Recipe
from synthetic.training.training import autocast, surprisals

# An H100: measured for copying and for square products in bfloat16 (docs/results/gpu.md), assumed for flash attention
# and for the shortest kernel.
BANDWIDTH, PRODUCTS, FLASH, SHORTEST = 2.96e12, 766e12, 300e12, 2e-6
B, J = 8, presets.CONTEXT
WAYS: tuple[attention.Way, ...] = ("by size", "tiles", "formula")  # timed by the harvest

# these compute nothing, though their schema does not mark them as views
_NO_KERNEL = frozenset(
    {"_unsafe_view", "detach", "alias", "lift_fresh", "empty", "empty_like", "empty_strided", "new_empty", "split"}
)
_KINDS = {
    "products": ("mm", "bmm", "addmm", "baddbmm", "baddbmm_"),
    "casts": ("_to_copy",),
    "softmax": ("_softmax", "_softmax_backward_data", "_log_softmax", "_log_softmax_backward_data"),
    "our kernels": ("softmax_rows", "softmax_rows_backward"),
    "sums": ("sum", "mean", "amax"),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}


@dataclass
class Traffic:
    """The work of a part of a step."""

    kernels: int = 0
    bytes: float = 0.0  # read and written
    seconds: float = 0.0  # by the roofline: for each kernel the longer of the times for its bytes and for its FLOPs
    beyond: float = 0.0  # of these, the excess of FLOP time over byte time
    by_kind: dict[str, float] = field(default_factory=dict)  # bytes

    def add(self, other: Traffic, times: int = 1) -> None:
        """Adds another part, multiplied by `times`."""
        self.kernels += times * other.kernels
        self.bytes += times * other.bytes
        self.seconds += times * other.seconds
        self.beyond += times * other.beyond
        for kind, amount in other.by_kind.items():
            self.by_kind[kind] = self.by_kind.get(kind, 0.0) + times * amount


class Meter(TorchDispatchMode):
    """Counts the kernels that are launched inside, and their traffic."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.traffic = Traffic()
        self.casts: Counter[tuple[int, ...]] = Counter()  # by shape

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        out, name, schema = func(*args, **(kwargs or {})), func.overloadpacket.__name__, func._schema
        written = [t for t in tree_leaves(out) if isinstance(t, Tensor)]
        read = {id(t): t for t in tree_leaves((args, kwargs)) if isinstance(t, Tensor) and t.is_cuda}
        view = bool(schema.returns) and all(r.alias_info and not r.alias_info.is_write for r in schema.returns)
        if not written:  # our operators write into an argument
            written = [a for a, s in zip(args, schema.arguments, strict=False) if s.alias_info is not None]
        if name in _NO_KERNEL or view or not any(t.is_cuda for t in written):
            return out
        if name == "copy_" or (kwargs or {}).get("beta", 1) == 0:  # an overwritten tensor is not read
            read.pop(id(args[0]))
        amount = sum(map(_bytes, read.values())) + sum(map(_bytes, written))
        if name == "_to_copy":
            self.casts[tuple(args[0].shape)] += 1
        kind = "fused attention" if "flash" in name or "efficient" in name else _KIND_OF.get(name, "elementwise")
        speed = FLASH if kind == "fused attention" else PRODUCTS
        beyond = max(0.0, _flops(name, args) / speed - amount / BANDWIDTH)
        seconds = max(amount / BANDWIDTH + beyond, SHORTEST)
        self.traffic.add(Traffic(1, amount, seconds, beyond, {kind: amount}))
        return out


def _bytes(tensor: Tensor) -> int:
    numbers = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        numbers *= size if stride else 1
    return numbers * tensor.element_size()


def _flops(name: str, args: tuple[Any, ...]) -> float:
    """FLOPs of a matrix product or of causal fused attention, which counts as half; otherwise 0."""
    if name in _KINDS["products"]:
        a, b = args[1:3] if "add" in name else args[:2]
        return 2.0 * float(a.numel() * b.shape[-1])
    if "flash" in name or "efficient" in name:
        q = args[1] if "backward" in name else args[0]
        return (5 if "backward" in name else 2) * float(q.numel() * q.shape[2])
    return 0.0


def step_by_part(config: LanguageModelConfig, path: blocked.Path | None = None) -> dict[str, Traffic]:
    """One step on B windows of J tokens without a compiler, in bfloat16: each part, and the total as "step"."""
    recipe = Recipe(1, batch=B, context=J, precision="bfloat16")
    parts: dict[str, Traffic] = {}
    with a_gpu(), contextlib.nullcontext() if path is None else blocked.using(path):
        model = LanguageModel(replace(config, layers=1), torch.Generator("cpu"))
        block, h = model.blocks[0], torch.zeros(B, J, config.dim, requires_grad=True)
        assert isinstance(block, Block)
        tokens = torch.zeros(B, J + 1, dtype=torch.int64)
        logits = torch.zeros(B, J, config.vocabulary, dtype=torch.bfloat16, requires_grad=True)
        ways: dict[str, Callable[[], Tensor]] = {
            "attention": lambda: block.attention.residual(h)[0],
            "MLP": lambda: block.mlp.residual(h),
            "embedding and head": lambda: model.norm(model.embedding[tokens[:, :-1]]) @ model.head.mT,
            "loss": lambda: surprisals(logits, tokens[:, 1:]).mean(),
        }
        for name, run in ways.items():
            with Meter() as meter:
                with autocast(recipe, "cuda"):
                    out = run()
                out.backward(torch.zeros_like(out))  # type: ignore[no-untyped-call]
            parts[name] = meter.traffic
    # a fused AdamW reads weight, gradient and both means in float32, and writes three of them
    updated = 28.0 * parameters(config)
    parts["optimiser"] = Traffic(1, updated, updated / BANDWIDTH, 0.0, {"optimiser": updated})
    return {**parts, "step": _step(parts, config.layers)}


def _step(parts: Mapping[str, Traffic], layers: int) -> Traffic:
    step = Traffic()
    for name, traffic in parts.items():
        step.add(traffic, layers if name in ("attention", "MLP", "block") else 1)
    return step


def of_attention(kind: attention.Kind, shape: attention.Shape, way: attention.Way) -> Traffic:
    """One layer of attention in bfloat16, forward and backward, as `benchmarks.attention` times it."""
    meter = Meter()
    with a_gpu(), contextlib.nullcontext() if way == "by size" else blocked.using(way):
        layer = CEMAttention(kind.config(shape.dim, shape.heads), torch.Generator("cpu")).to(torch.bfloat16)
        h = torch.zeros(shape.batch, shape.tokens, shape.dim, dtype=torch.bfloat16, requires_grad=True)
        with meter:
            out: Tensor = layer(h)
            out.backward(torch.zeros_like(out))  # type: ignore[no-untyped-call]
    return meter.traffic


# --- the compiler's plan ----------------------------------------------------------------------------------

LENGTHS = (256, 384, 512)  # of windows for which plans are made; the traffic is c + p J + q J^2


def compiled_step(config: LanguageModelConfig) -> dict[str, Traffic]:
    """The same step with a block and the loss compiled, each in one graph, as Inductor plans it for a CPU."""
    eager = step_by_part(config)
    parts = {name: eager[name] for name in ("embedding and head", "optimiser")}
    parts["block"] = planned(config)
    # products stay the same
    parts["block"].add(Traffic(beyond=(beyond := eager["attention"].beyond + eager["MLP"].beyond), seconds=beyond))
    logits = torch.zeros(1, LENGTHS[0], config.vocabulary, dtype=torch.bfloat16, requires_grad=True)
    targets = torch.zeros(1, LENGTHS[0], dtype=torch.int64)
    kernels, moved = _plan(lambda x: surprisals(x, targets).mean(), logits)
    parts["loss"] = _of_plan(kernels, moved * B * J / LENGTHS[0])
    return {**parts, "step": _step(parts, config.layers)}


def planned(config: LanguageModelConfig) -> Traffic:
    """A block, forward and backward, at B windows of J tokens."""
    with contextlib.ExitStack() as stack:
        # as on a GPU, which uses our kernels and ALiBi's features; their results do not matter here
        stack.enter_context(mock.patch.object(features, "FEATURES_ON", {"cpu"}))
        stack.enter_context(mock.patch.object(blocked, "ROWS_ON", {"cpu"} if blocked.ROWS_ON else set[str]()))
        if blocked.ROWS_ON:
            stack.enter_context(mock.patch("cemverify.cem.energies.rows._launch"))
        block = Block(config.block, torch.Generator().manual_seed(0))
        plans = []
        for length in LENGTHS:
            blocked.ROWS_TILE, usual = blocked.ROWS_TILE * length // J, blocked.ROWS_TILE
            h = torch.zeros(1, length, config.dim, requires_grad=True)
            plans.append(_plan(lambda x: block(x)[0], h))
            blocked.ROWS_TILE = usual
    J1, J2, J3 = LENGTHS
    y1, y2, y3 = (moved for _, moved in plans)
    q = ((y3 - y2) / (J3 - J2) - (y2 - y1) / (J2 - J1)) / (J3 - J1)
    p = (y2 - y1) / (J2 - J1) - q * (J1 + J2)
    c = y1 - p * J1 - q * J1**2
    return _of_plan(plans[0][0], c + B * (p * J + q * J**2))


def _of_plan(kernels: int, moved: float) -> Traffic:
    return Traffic(kernels, moved, max(moved / BANDWIDTH, kernels * SHORTEST), 0.0, {"planned": moved})


def _plan(function: Callable[[Tensor], Tensor], x: Tensor) -> tuple[int, int]:
    """Kernels and bytes of a function, forward and backward, in one graph, as Inductor plans them under autocast."""
    from torch._functorch._aot_autograd.utils import make_boxed_func
    from torch._inductor import compile_fx
    from torch._inductor.graph import GraphLowering
    from torch._inductor.virtualized import V

    totals = [0, 0]

    def count(graph: Any, inputs: Any, **_: Any) -> Any:
        fake = compile_fx.fake_tensor_prop(graph, inputs)
        compile_fx.record_original_output_strides(graph)
        with V.set_fake_mode(fake):
            compile_fx._recursive_post_grad_passes(graph, False)
        lowered = GraphLowering(graph, shape_env=fake.shape_env)
        with (
            V.set_graph_handler(lowered),
            V.set_real_inputs(inputs),
            V.set_debug_handler(mock.MagicMock()),
            V.set_fake_mode(fake),
        ):
            lowered.run(*inputs)
            lowered._update_scheduler()
            totals[0] += len(lowered.scheduler.nodes)
            totals[1] += lowered.count_bytes()[0]
        return make_boxed_func(graph.forward)

    def backend(graph: Any, inputs: Any) -> Any:
        return compile_fx.compile_fx(graph, inputs, inner_compile=count)

    torch.compiler.reset()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = torch.compile(function, backend=backend, fullgraph=True, dynamic=False)(x)
    out.backward(torch.ones_like(out))  # type: ignore[no-untyped-call]
    return totals[0], totals[1]


# --- as a file ------------------------------------------------------------------------------------------------


def models(size: str = "86M") -> dict[str, LanguageModelConfig]:
    """Those models of the training benchmark that are counted."""
    diagonal = {T: shared_preconditioners(presets.full_cem(size, T)) for T in (1, 2)}
    return {
        f"{size} Llama RoPE": presets.llama(size),
        **{f"{size} CEM T={T}": config for T, config in diagonal.items()},
        f"{size} CEM T=1, no diagonal": without_diagonal(diagonal[1]),
    }


def counts() -> dict[str, dict[str, dict[str, Traffic]]]:
    """The parts of a step, by model and by the way it is computed ("by size", a path, "compiled")."""
    found: dict[str, dict[str, dict[str, Traffic]]] = {}
    for name, config in models().items():
        found[name] = {"by size": step_by_part(config)}
        if name.endswith(("T=1", "T=2")):
            found[name] |= {path: step_by_part(config, path) for path in ("tiles", "blocks", "formula")}
        found[name]["compiled"] = compiled_step(config)
    return found


def table(counted: Mapping[str, Any]) -> Table:
    """A line for each part of a step, by model and by the way it is computed."""
    rows = [
        [name, how, part, *_cells(t)]
        for name, ways in counted.items()
        for how, parts in ways.items()
        for part, t in parts.items()
    ]
    title = f"Predicted: a step of {B} x {J:,} tokens; attention, MLP and block are those of one layer"
    return Table(title, ("model", "path", "part", *COLUMNS), rows)


COLUMNS = ("kernels", "GB", "roofline ms")


def _cells(t: Mapping[str, Any]) -> list[str]:
    return [f"{t['kernels']:,}", f"{t['bytes'] / 1e9:.1f}", f"{1e3 * t['seconds']:.1f}"]


PAGE = """\
# What a training step moves

Predicted, and measured on no GPU: made by `python -m benchmarks.rehearsal.traffic docs/results/traffic.md` with
torch {torch}.

A training step on an H100 was found to be bound by its memory: 86M models take 1.35 to 1.43 times this roofline there
([what a GPU says](gpu.md)), by the paths that there were. So these are the bytes that operations read and write,
counted on fake tensors, in bfloat16 with float32 weights. CEM has a shared diagonal, ALiBi, and diagonal
preconditioners that heads share. *By size* is the path that layers take by themselves. *Compiled* is what torch's
Inductor plans for a CPU, a block in one graph without breaks, and the loss; its plan for a GPU may differ. The
roofline takes each kernel's bytes at {bandwidth:.2f} TB/s or its products at {products:.0f} TFLOP/s, as measured on
an H100, whichever takes longer; flash attention at 300 TFLOP/s and 2 microseconds for the shortest kernel are
assumed.

{table}
"""


def main(file: str) -> None:
    """Writes the counts, as JSON or as a page."""
    steps = {
        name: {how: {part: asdict(traffic) for part, traffic in parts.items()} for how, parts in ways.items()}
        for name, ways in counts().items()
    }
    shapes = [attention.Shape(16384 // tokens, tokens, 768, 12) for tokens in (1024, 2048)]
    layers = [
        {"attention": kind.name, "path": way, "tokens": shape.tokens, **asdict(of_attention(kind, shape, way))}
        for shape in shapes
        for kind in attention.kinds((1, 2))
        for way in WAYS
    ]
    content = {"training": steps, "attention": layers}
    Path(file).write_text(page(content) if file.endswith(".md") else json.dumps(content) + "\n")


def page(counted: Mapping[str, Any]) -> str:
    """The page of the counts."""
    rows = [[f"{t['tokens']:,}", t["attention"], t["path"], *_cells(t)] for t in counted["attention"]]
    title = "Predicted: one layer of attention, forward and backward, bfloat16, 16,384 tokens, D = 768, K = 12"
    layers = Table(title, ("tokens", "attention", "path", *COLUMNS), rows)
    tables = markdown([table(counted["training"]), layers])
    speeds = {"bandwidth": BANDWIDTH / 1e12, "products": PRODUCTS / 1e12}
    return PAGE.format(torch=torch.__version__.partition("+")[0], table=tables, **speeds)


if __name__ == "__main__":
    main(sys.argv[1])
