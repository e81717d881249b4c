"""Maximal-update scaling: at one learning rate, training moves features by as much at every width and depth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from cemverify.cem import presets as paper
from suites.synthetic.test_second_step import beyond
from synthetic.corpora.choice import CorpusChoice, PinnedCorpus
from synthetic.studies.engine.designs import Replaced
from synthetic.studies.engine.plan import SMALL_SIZE
from synthetic.studies.second_step import STUDY
from synthetic.studies.second_step.rows import PLAIN, Key
from synthetic.training.frames import TINY_SIZE, tiny_dims, tiny_frame
from synthetic.training.looped import LoopedModel, paired
from synthetic.training.recipe import Base, Recipe
from synthetic.training.training import adamw

BASE = Base(TINY_SIZE.dim, TINY_SIZE.layers, TINY_SIZE.heads)
RECIPE = Recipe(steps=4, batch=4, context=16, learning_rate=0.01, weight_decay=0.0)

plan = STUDY.plan


@dataclass(frozen=True)
class Look:
    """The root mean square of the stream's change in training, and of the first logits."""

    change: float
    logits: float


def look(dim: int, layers: int, replaced: Replaced = "full") -> Look:
    """A few steps of Adam at the rate of the base; heads grow with the width."""
    size = paper.Size(dim, layers, BASE.heads, 8 * dim // 3 // 8 * 8)
    (row,) = (row for row in beyond(replaced, tiny_frame(32, size)) if row.name == "T = 2, mu-scaled")
    model = paired(row.design.looped, 0)
    recipe = replace(RECIPE, base=row.base)
    optimiser = adamw(model, recipe)
    tokens = torch.randint(32, (4, 17), generator=torch.Generator().manual_seed(1))
    before = stream(model, tokens[:, :-1])
    for _ in range(recipe.steps):
        for group in optimiser.param_groups:
            group["lr"] = recipe.learning_rate * group["share"]
        F.cross_entropy(model(tokens[:, :-1]).mT, tokens[:, 1:]).backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        optimiser.zero_grad()
    first = paired(row.design.looped, 0)(tokens[:, :-1])
    return Look(rms(stream(model, tokens[:, :-1]) - before), rms(first))


@torch.no_grad()
def stream(model: LoopedModel, tokens: torch.Tensor) -> torch.Tensor:
    h = model.embedding[tokens]
    for block in model.blocks:
        h, _ = block(h)
    return h


def rms(values: torch.Tensor) -> float:
    return float(values.detach().square().mean().sqrt())


# --- properties -----------------------------------------------------------------------------------------


def test_features_move_alike_at_every_width() -> None:
    changes = [look(dim, 2).change for dim in (32, 128)]
    assert max(changes) < 1.35 * min(changes), changes


def test_features_move_alike_at_every_depth() -> None:
    changes = [look(32, layers).change for layers in (1, 6)]
    assert max(changes) < 1.5 * min(changes), changes


def test_first_logits_shrink_like_one_over_root_d() -> None:
    narrow, wide = (look(dim, 1, "attention").logits for dim in (32, 128))
    assert narrow / wide == pytest.approx(2, rel=0.2)


def test_scores_of_aligned_queries_and_keys_stay() -> None:
    """|W x|^2 / tau for W of N(0, 1/D): what a trained head may make of a token and itself."""
    scores = []
    for R in (8, 32, 128, 512):
        W, x = (torch.randn(*shape, generator=torch.Generator().manual_seed(R)) for shape in ((R, 64), (64, 100)))
        scores.append(float((W / 8 @ x).square().sum(0).mean()) / BASE.temperature(R))
    assert max(scores) < 1.3 * min(scores), scores


def test_at_the_base_nothing_is_scaled() -> None:
    names = ("blocks.0.attention.W_Q", "blocks.0.mlp.preconditioner.p", "head", "embedding", "norm.gain")
    assert [BASE.rate_share(name, BASE.dim, BASE.layers) for name in names] == [1.0] * 5
    assert BASE.head_std(BASE.dim) == pytest.approx(BASE.dim**-0.5)
    assert BASE.temperature(BASE.head_dim) == pytest.approx(BASE.head_dim**0.5)
    assert BASE.step_share(BASE.layers) == 1
    assert not [row for row in beyond("full", tiny_frame(16)) if row.base]


# a property, a method, and what takes its place in a fault that the property must find
KILLS: list[tuple[Callable[[], None], str, Callable[..., float]]] = [
    (test_features_move_alike_at_every_width, "rate_share", lambda *_: 1.0),
    (test_features_move_alike_at_every_width, "rate_share", lambda self, name, dim, layers: dim / self.dim),
    (test_features_move_alike_at_every_depth, "step_share", lambda *_: 1.0),
    (test_first_logits_shrink_like_one_over_root_d, "head_std", lambda _, dim: dim**-0.5),
    (test_scores_of_aligned_queries_and_keys_stay, "temperature", lambda _, head_dim: head_dim**0.5),
    (test_at_the_base_nothing_is_scaled, "rate_share", lambda self, name, dim, layers: 1 / dim),
    (test_at_the_base_nothing_is_scaled, "temperature", lambda _, head_dim: float(head_dim)),
]


@pytest.mark.parametrize(("claim", "method", "fault"), KILLS)
def test_the_property_kills_the_mutant(
    claim: Callable[[], None], method: str, fault: Callable[..., float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Base, method, fault)
    with pytest.raises(AssertionError):
        claim()


# --- how it is used -------------------------------------------------------------------------------------


@pytest.mark.parametrize("replaced", ["attention", "mlp", "full"])
def test_every_parameter_of_every_row_has_a_rate(replaced: Replaced) -> None:
    study_plan = plan(replaced, 16, dims=tiny_dims(32, 1, 2), with_beyond=True)
    assert {row.name for row in study_plan.rows if row.base} == {"T = 1, mu-scaled", "T = 2, mu-scaled"}
    for row in study_plan.rows:
        model = paired(row.design.looped, 0)
        groups = adamw(model, replace(RECIPE, base=BASE)).param_groups
        assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))


def test_a_parameter_of_which_nothing_is_said_is_refused() -> None:
    with pytest.raises(ValueError, match=r"how the rate of blocks\.0\.attention\.novelty scales"):
        BASE.rate_share("blocks.0.attention.novelty", 64, 2)


def test_the_rows_of_a_larger_size_are_trained_from_the_base() -> None:
    study_plan = plan("full", 256, size="small", with_beyond=True)
    row: Any = study_plan.row(Key("mu-scaled", 2))
    pinned = PinnedCorpus(CorpusChoice(), "0" * 64)
    assert study_plan.cell(row, 0, "judging", 1.0, 0.004, pinned, "cpu").recipe.base == BASE
    assert row.design.looped.model.head_std == pytest.approx(BASE.dim**0.5 / SMALL_SIZE.dim)
    assert dict(row.design.layer)["step_size"] == pytest.approx((BASE.layers / SMALL_SIZE.layers) ** 0.5 / 2)
    usual: Any = study_plan.row(PLAIN)
    assert study_plan.cell(usual, 0, "judging", 1.0, 0.004, pinned, "cpu").recipe.base is None
