"""What each of several processes holds and sends in a step of training, where none of the others is there.

`init_process_group("fake")` gives a group whose collectives return at once. FSDP2 runs on fake tensors of a CPU,
where its shards and collectives are those of a GPU. DDP copies gradients into buckets in C++, for which it needs
numbers: its model is a real one. The one window is short, since neither shards nor what is sent depend on the tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any
from unittest import mock

import pytest
import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.nn import functional as F

from benchmarks.rehearsal.watching import moved
from cemverify.cem import presets
from cemverify.cem.models import LanguageModel, LanguageModelConfig
from cemverify.cem.torch_internals import FakeTensorMode, TorchDispatchMode, tree_leaves
from synthetic.training.machine import Machine, shard

WORLD = 8
SHORT = 16  # tokens of the window
MODELS = {
    f"{size}-{name}": config
    for size in ("86M", "162M")
    for name, config in (("llama", presets.llama(size)), ("t2", presets.full_cem(size, 2)))
}


@pytest.fixture(autouse=True)
def first_of_eight() -> Iterator[None]:
    """This process is the first of eight, which holds as much as any."""
    dist.init_process_group("fake", rank=0, world_size=WORLD)
    yield
    dist.destroy_process_group()


class Collectives(TorchDispatchMode):
    """Collectives as they pass: how often each, and the bytes of its larger side."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.calls: Counter[str] = Counter()
        self.sent: Counter[str] = Counter()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func.namespace == "c10d":
            name = func.overloadpacket.__name__
            self.calls[name] += 1
            self.sent[name] += max(t.nbytes for t in tree_leaves(args) if isinstance(t, Tensor))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_each_process_has_an_eighth_of_the_weights_by_fsdp2(config: LanguageModelConfig) -> None:
    mesh = init_device_mesh("cpu", (WORLD,))  # which reads values, and so comes before the fake tensors
    with mock.patch.object(nn.Module, "to", moved), FakeTensorMode(allow_non_fake_inputs=True):
        model = LanguageModel(config, torch.Generator("cpu"))
        shard(model, mesh)
        with Collectives() as collectives:
            step(model, config.vocabulary)
    weights = sum(p.nbytes for p in model.parameters())
    own = sum(_local(p).nbytes for p in model.parameters())
    assert weights / WORLD <= own < weights / (WORLD - 1)
    # each block is gathered forwards and backwards, what is left once; each sends its gradients
    assert collectives.calls == {
        "_allgather_base_": 2 * config.layers + 1,
        "_reduce_scatter_base_": config.layers + 1,
    }
    assert weights <= collectives.sent["_reduce_scatter_base_"] <= WORLD * own


def _local(parameter: Any) -> Tensor:
    shard: Tensor = parameter.to_local()
    return shard


@pytest.mark.parametrize("config", MODELS.values(), ids=MODELS)
def test_each_process_sends_every_gradient_once_by_ddp(config: LanguageModelConfig) -> None:
    model = LanguageModel(config, torch.Generator("cpu").manual_seed(0))
    wrapped: Any = Machine("cpu", 0, WORLD).wrap(model)
    buckets: list[int] = []

    def reduce(bucket: Any) -> torch.futures.Future[Tensor]:
        buckets.append(bucket.buffer().nbytes)
        done: torch.futures.Future[Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    # a lambda, since DDP reads the types of a function that has any
    wrapped.register_comm_hook(None, lambda _, bucket: reduce(bucket))
    step(wrapped, config.vocabulary)  # of the first step DDP learns in which order gradients come
    buckets.clear()
    step(wrapped, config.vocabulary)
    assert sum(buckets) == sum(p.nbytes for p in model.parameters())


def step(model: nn.Module, vocabulary: int) -> None:
    """Forward and backward, whose gradients stay."""
    tokens = torch.arange(SHORT + 1)[None] % vocabulary
    loss = F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:])
    loss.backward()  # type: ignore[no-untyped-call]
