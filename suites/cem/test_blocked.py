"""A descent by blocks gives the same states and the same derivatives, of first and second order, in less memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from cemverify.cem import blocked
from cemverify.cem.blocked import descend
from cemverify.cem.energies.tiled import TiledInteraction
from cemverify.cem.layers import AttentionConfig, CEMAttention, CEMGatedMLP, CEMLayer, MLPConfig, PreconditionerConfig
from cemverify.cem.torch_internals import TorchDispatchMode, standard_gamma
from suites.cem.helpers import generator, randn, randomised

PER_HEAD = PreconditionerConfig("low-rank", per_head=True)


def layer(diagonal: Any = "none", position: Any = "none", P: Any = PER_HEAD, **options: Any) -> CEMAttention:
    more = {"diagonal": diagonal, "position": position, "preconditioner": P, "steps": 2, **options}
    return randomised(CEMAttention(AttentionConfig(12, 3, norm="channel", **more), generator(1)), 2)


def states(tokens: int, seed: int) -> Tensor:
    return randn(2, tokens, 12, seed=seed).requires_grad_()


def answers(module: CEMLayer, x: Tensor, h: Tensor, go: Callable[..., Tensor]) -> Iterator[Tensor]:
    """x^(T), and the gradients of x, h and every parameter."""
    energy = module.energy
    reached = go(module.descent, energy, x, energy.remember(h))
    yield reached
    sources, weights = (x, h, *module.parameters()), randn(*reached.shape, seed=3)
    yield from torch.autograd.grad(reached, sources, weights, allow_unused=True, materialize_grads=True)


def assert_formula(module: CEMLayer, x: Tensor, h: Tensor, go: Callable[..., Tensor]) -> None:
    """Asserts that another path agrees with the formula."""
    expected = answers(module, x, h, lambda descent, *rest: descent(*rest))
    for a, b in zip(expected, answers(module, x, h, go), strict=True):
        torch.testing.assert_close(b, a, rtol=1e-11, atol=1e-12)


def assert_same(module: CEMLayer, x: Tensor, h: Tensor, rows: int, tile: int) -> None:
    assert_formula(module, x, h, lambda *all_: descend(*all_, rows=rows, tile=tile))


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
@pytest.mark.parametrize("position", ["none", "alibi", "self-cross", "rotary"])
@pytest.mark.parametrize("diagonal", ["none", "shared", "per-head"])
def test_attention_by_blocks_is_the_formula(diagonal: str, position: str, causal: bool) -> None:
    for preconditioner in (PER_HEAD, PreconditionerConfig()):
        # nine tokens in memory, seven of them queries: as in decoding from a cache
        assert_same(layer(diagonal, position, preconditioner, causal=causal), states(7, 4), states(9, 5), 3, 2)


def test_in_bfloat16_the_last_tokens_of_a_row_are_attended_like_the_row() -> None:
    module = layer("shared", "alibi").bfloat16()
    x, h = (tokens.detach().bfloat16() for tokens in (states(7, 4), states(9, 5)))
    expected = module.descent(module.energy, x, module.energy.remember(h)).float()
    actual = descend(module.descent, module.energy, x, module.energy.remember(h), rows=3, tile=2).float()
    # the two differ in the order of their sums: by a few roundings of the states
    assert float((actual - expected).abs().max()) <= 8 * torch.finfo(torch.bfloat16).eps * float(expected.abs().max())


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "not causal"])
@pytest.mark.parametrize("position", ["none", "rotary"])
@pytest.mark.parametrize("remembered", [7, 9])
def test_torchs_own_attention_takes_all_tokens_at_once_where_rows_are_aligned(
    remembered: int, position: str, causal: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(blocked, "FUSED_ON", {"cpu"})
    module = layer(position=position, causal=causal, steps=3)
    with patch.object(TiledInteraction, "of", wraps=TiledInteraction.of) as cut:
        assert_formula(module, states(7, 4), states(remembered, 5), descend)
    assert cut.called == (causal and remembered == 9), "the last seven of nine need a mask where each sees its past"


@pytest.mark.parametrize(("rows", "tile"), list(product((1, 4, 7, 50), (1, 3, 50))))
def test_blocks_and_tiles_of_any_size_give_the_same(rows: int, tile: int) -> None:
    assert_same(layer("shared", "alibi", steps=3, step="learned"), states(7, 4), states(7, 5), rows, tile)


def mlp() -> CEMGatedMLP:
    config = MLPConfig(12, 20, steps=3, norm="folded", preconditioner=PreconditionerConfig("low-rank"))
    return randomised(CEMGatedMLP(config, generator(1)), 2)


def test_an_mlp_is_the_formula_by_blocks_and_without_its_hidden_numbers() -> None:
    assert_same(mlp(), states(7, 4), states(7, 5), 3, 2)
    with blocked.using("tiles"):
        assert_formula(mlp(), states(7, 4), states(7, 5), blocked.run)


def second_derivatives(module: CEMLayer, path: blocked.Path, own: bool) -> Iterator[Tensor]:
    """Derivatives of first order that can be differentiated again, and those of second order.

    Args:
        own: whether the memory is the start itself, as for a layer called with one argument.
    """
    x = states(5, 4)
    h = x if own else states(5, 5)
    with blocked.using(path, rows=3, tile=2):
        reached = module(x, h)
    sources = [x, *([] if own else [h]), *module.parameters()]
    first = torch.autograd.grad(reached.square().sum(), sources, create_graph=True)
    yield from first
    yield from torch.autograd.grad(torch.stack([d.square().sum() for d in first]).sum(), sources)


@pytest.mark.parametrize("own", [True, False], ids=["of itself", "of another"])
@pytest.mark.parametrize("path", ["tiles", "blocks"])
def test_a_second_derivative_is_that_of_the_formula(path: blocked.Path, own: bool) -> None:
    for module in (mlp(), layer("shared", "alibi", steps=3), layer("per-head", "self-cross", steps=3)):
        expected = list(second_derivatives(module, "formula", own))
        for a, b in zip(expected, second_derivatives(module, path, own), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-8, atol=1e-8 * float(a.detach().abs().max()))


def stored_bytes(tokens: int, steps: int, diagonal: str) -> int:
    """How many numbers a layer keeps for the backward pass when it runs by blocks."""
    module = layer(diagonal, "alibi", PreconditionerConfig(), steps=steps)
    sizes: list[int] = []

    def note(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    kept = torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor)
    with kept, blocked.using("blocks", rows=8, tile=4):
        module(states(tokens, 4))
    return sum(sizes)


class Casts(TorchDispatchMode):
    """Counts how often each tensor is cast to another dtype, by the address of its numbers."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no types here
        self.of: Counter[int] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.overloadpacket.__name__ == "_to_copy":
            self.of[args[0].data_ptr()] += 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("path", ["formula", "tiles", "blocks"])
def test_under_autocast_a_weight_is_cast_once_whatever_the_steps(path: blocked.Path) -> None:
    plain = CEMGatedMLP(MLPConfig(12, 20, steps=4), generator(1))
    for module in (plain, layer("shared", "alibi", PreconditionerConfig(), steps=4).float()):
        x = states(7, 4).detach().float().requires_grad_()
        with Casts() as casts, torch.autocast("cpu", torch.bfloat16), blocked.using(path, rows=3, tile=2):
            module(x).sum().backward()
        weights = {name: casts.of[p.data_ptr()] for name, p in module.named_parameters() if p.dim() > 1}
        assert set(weights.values()) == {1}, weights


@pytest.mark.parametrize("diagonal", ["none", "shared", "per-head"])
def test_what_is_kept_for_the_backward_pass_grows_with_the_tokens_and_not_their_square(diagonal: str) -> None:
    assert stored_bytes(80, 2, diagonal) < 2.1 * stored_bytes(40, 2, diagonal)
    one_state = 2 * 40 * 12  # two rows of 40 tokens and 12 features
    assert stored_bytes(40, 16, diagonal) - stored_bytes(40, 15, diagonal) == one_state


def test_a_layer_takes_a_fast_path_where_that_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    def path(steps: int) -> blocked.Path:
        module = layer("shared", "alibi", PreconditionerConfig(), steps=steps)
        h = states(7, 4)
        return blocked.path_for(module.descent, module.energy, h, module.energy.remember(h))

    assert path(2) == "formula"  # 49 weights are few enough
    with blocked.using("blocks"):
        assert path(2) == "blocks"
    monkeypatch.setattr(blocked, "PAIRS", 49)
    assert [path(steps) for steps in (1, 2, 3, 8)] == ["tiles", "tiles", "blocks", "blocks"]
    with torch.no_grad():
        assert path(8) == "tiles"  # nothing is kept for the backward pass


def test_no_tokens_are_no_blocks_and_sizes_below_one_are_refused() -> None:
    for diagonal, steps in product(("none", "shared"), (3, 9)):
        assert_same(layer(diagonal, "alibi", steps=steps), states(0, 4), states(0, 5), 3, 2)
    descent, energy = layer().descent, layer().energy
    with pytest.raises(ValueError, match="at least 1 row, not 0"):
        descend(descent, energy, states(3, 4), energy.remember(states(3, 5)), tile=0)
    with pytest.raises(ValueError, match="unknown path 'quick'; choose from"), blocked.using("quick"):  # type: ignore[arg-type]
        pass


def test_names_of_1_0_that_go_still_answer_and_say_so() -> None:
    with pytest.deprecated_call():
        assert blocked.usual_tile(torch.zeros(1)) == blocked.USUAL_TILE["cpu"]
    with pytest.deprecated_call():
        assert standard_gamma(torch.ones(3), torch.Generator()).shape == (3,)
