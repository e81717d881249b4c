"""What each of several processes holds and sends in a step of training, where none of the others is there.

`init_process_group("fake")` gives a group whose collectives return at once. FSDP2 runs on fake tensors of a CPU,
where its shards and collectives are those of a GPU. DDP copies gradients into buckets in C++, for which it needs
numbers: its model is a real one. The one window is short, since neither shards nor what is sent depend on the tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal
from unittest import mock

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.rehearsal.watching import moved
from cemverify.cem import presets
from cemverify.cem.models import LanguageModel
from synthetic.training import footprint
from synthetic.training.looped import LoopedConfig
from synthetic.training.machine import Machine, shard

Way = Literal["FSDP2", "DDP"]

WORLD = 8
SHORT = 16  # tokens of the window


@dataclass(frozen=True)
class Plan:
    """A training of one model by several processes, in bytes; of the fullest process where they differ.

    Attributes:
        size: of the paper's Table 1. steps: T of full CEM; None is Llama.
        wrapped: modules whose weights travel together: blocks, and the whole for what is left (FSDP2), or one (DDP).
        weights: of the whole model. own: what a process has of them.
        calls, sent: of each collective in a step, how often it is called, and bytes of whole tensors with padding.
        held: weights, gradients, Adam's two means, what FSDP2 has gathered at a time or the buckets of DDP, and what
            one window of the paper's context keeps.
    """

    size: str
    steps: int | None
    way: Way
    world: int
    wrapped: int
    weights: int
    own: int
    calls: Mapping[str, int]
    sent: Mapping[str, int]
    held: int

    def line(self) -> str:
        """For a log."""
        model = f"{self.size} " + ("Llama" if self.steps is None else f"full CEM T={self.steps}")
        sent = ", ".join(f"{self.calls[what]} {what} of {self.sent[what] / 1e6:,.0f} MB" for what in self.calls)
        share = f"{self.own / 1e6:,.0f} of {self.weights / 1e6:,.0f} MB of weights in each of {self.world} processes"
        return f"{model}, {self.way}: {self.wrapped} wrapped, {share}; {sent}; {self.held / 1e6:,.0f} MB held"


def plan(size: str, steps: int | None, way: Way, world: int = WORLD) -> Plan:
    """Takes one step forward and back as the first of `world` processes, which holds as much as any."""
    config = presets.llama(size) if steps is None else presets.full_cem(size, steps)
    dist.init_process_group("fake", rank=0, world_size=world)
    try:
        model, calls, sent = (_split if way == "FSDP2" else _copied)(config, world)
    finally:
        dist.destroy_process_group()
    weights = sum(p.nbytes for p in model.parameters())
    own = sum(_here(p).nbytes for p in model.parameters())
    blocks = [sum(p.nbytes for p in block.parameters()) for block in model.blocks]
    # FSDP2 keeps what belongs to no block until the end of a step, and of the blocks one and the next
    besides = weights - sum(blocks) + sum(blocks[:2]) if way == "FSDP2" else weights
    held = 4 * own + besides + footprint.kept(LoopedConfig(config), presets.CONTEXT)
    wrapped = len(blocks) + 1 if way == "FSDP2" else 1
    return Plan(size, steps, way, world, wrapped, weights, own, dict(calls), dict(sent), held)


def _here(parameter: Tensor) -> Tensor:
    part: Any = parameter
    return part.to_local() if hasattr(part, "to_local") else parameter


class _Collectives(TorchDispatchMode):
    """Collectives as they pass: how often each, and the bytes of its larger side."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.calls: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            what = {"_allgather_base_": "all-gather", "_reduce_scatter_base_": "reduce-scatter"}[
                func.overloadpacket.__name__
            ]
            self.calls[what] += 1
            self.sent[what] += max(t.nbytes for t in tree_leaves(args) if isinstance(t, Tensor))
        return func(*args, **(kwargs or {}))


def _split(config: Any, world: int) -> tuple[LanguageModel, Counter[str], Counter[str]]:
    mesh = init_device_mesh("cpu", (world,))  # which reads values, and so comes before the fake tensors
    with mock.patch.object(nn.Module, "to", moved), FakeTensorMode(allow_non_fake_inputs=True):
        model = LanguageModel(config, torch.Generator("cpu"))
        shard(model, mesh)
        with _Collectives() as seen:
            _step(model, config.vocabulary)
    return model, seen.calls, seen.sent


def _copied(config: Any, world: int) -> tuple[LanguageModel, Counter[str], Counter[str]]:
    model = LanguageModel(config, torch.Generator("cpu").manual_seed(0))
    wrapped: Any = Machine("cpu", 0, world).wrap(model)
    calls, sent = Counter[str](), Counter[str]()

    def reduced(bucket: Any) -> torch.futures.Future[Tensor]:
        calls["all-reduce"] += 1
        sent["all-reduce"] += bucket.buffer().nbytes
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    wrapped.register_comm_hook(
        None, lambda _, bucket: reduced(bucket)
    )  # DDP reads the types of a function that has any
    _step(wrapped, config.vocabulary)  # of the first step DDP learns in which order gradients come
    calls.clear()
    sent.clear()
    _step(wrapped, config.vocabulary)
    return model, calls, sent


def _step(model: nn.Module, vocabulary: int) -> None:
    tokens = torch.arange(SHORT + 1)[None] % vocabulary
    loss = F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
    loss.backward()  # type: ignore[no-untyped-call]
