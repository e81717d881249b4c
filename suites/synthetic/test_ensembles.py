"""Replicates that are trained together are trained as if each were alone."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from cemverify.cem.layers import CEMGatedMLP, MLPConfig
from cemverify.console.errors import UsageError
from synthetic.gp.tasks import Stream, Streams
from synthetic.studies.recursion.ensembles import Recipe, fit
from synthetic.studies.recursion.regressors import CEMCore, CEMSpec, GatedMLPSpec, RegressorStack, Spec

RECIPE = Recipe(steps=60, batch=32, check_every=10)
SPECS: tuple[Spec, ...] = (
    CEMSpec(width=12, hidden=16, steps=1),
    CEMSpec(width=12, hidden=16, steps=4, norm="scalar"),
    CEMSpec(width=5, hidden=16, steps=2, preconditioner="low-rank", norm="folded", step_size="learned"),
    CEMSpec(width=12, hidden=16, steps=2, preconditioner="low-rank-printed", norm="channel"),
    CEMSpec(width=12, hidden=16, steps=3, preconditioner="diagonal"),
    GatedMLPSpec(width=12, hidden=16, reuse=2),
)


def streams(*seeds: int) -> list[Streams]:
    return [Streams(0, "test", seed) for seed in seeds]


def data(*seeds: int) -> tuple[Tensor, Tensor]:
    """Points and values, (S, 256, 5) and (S, 256)."""
    drawn = [torch.rand(256, 5, generator=s.generator(Stream.INPUTS), dtype=torch.float64) for s in streams(*seeds)]
    inputs = 2 * torch.stack(drawn) - 1
    return inputs, torch.sin(3 * inputs.sum(-1))


def train(spec: Spec, *seeds: int, recipe: Recipe = RECIPE) -> tuple[RegressorStack, list[float]]:
    model = RegressorStack(spec, 5, streams(*seeds)).double()
    fits = fit(model, *data(*seeds), recipe, [s.generator(Stream.BATCHES) for s in streams(*seeds)])
    return model, [f.held_out_rmse for f in fits]


@pytest.mark.parametrize("spec", SPECS, ids=repr)
def test_three_at_once_are_the_same_as_one_by_one(spec: Spec) -> None:
    together, errors = train(spec, 0, 1, 2)
    for seed in range(3):
        alone, (error,) = train(spec, seed)
        assert error == pytest.approx(errors[seed], rel=1e-10)
        for stacked, single in zip(together.parameters(), alone.parameters(), strict=True):
            # 60 optimiser steps amplify roundoff of 1e-16 a little
            torch.testing.assert_close(stacked[seed], single[0], rtol=1e-9, atol=1e-11)


def test_a_stacked_regressor_predicts_what_the_reference_predicts() -> None:
    spec = CEMSpec(width=12, hidden=16, steps=3)
    stacked = RegressorStack(spec, 5, streams(0)).double()
    mlp = CEMGatedMLP(MLPConfig(dim=12, hidden=16, steps=3), torch.Generator().manual_seed(0)).double()
    with torch.no_grad():
        assert isinstance(stacked.core, CEMCore)
        assert stacked.lift is not None
        mlp.V.copy_(stacked.core.V[0])
        mlp.W.copy_(stacked.core.W[0])
    inputs, _ = data(0)
    expected = mlp(inputs[0] @ stacked.lift[0].mT) @ stacked.readout[0, :, 0]  # the first intercept is 0
    torch.testing.assert_close(stacked(inputs)[0], expected, rtol=1e-13, atol=1e-13)


def test_models_that_share_a_parameter_start_with_the_same_values_in_it() -> None:
    shallow = RegressorStack(CEMSpec(width=12, hidden=16, steps=1), 5, streams(0))
    deep = RegressorStack(CEMSpec(width=12, hidden=16, steps=8, preconditioner="diagonal"), 5, streams(0))
    untied = RegressorStack(GatedMLPSpec(width=12, hidden=16), 5, streams(0))
    inputs = data(0)[0].float()
    assert isinstance(shallow.core, CEMCore)
    assert isinstance(deep.core, CEMCore)
    assert torch.equal(shallow.core.V, deep.core.V)
    assert torch.equal(shallow.readout, deep.readout)
    # and the untied MLP starts as the tied one
    torch.testing.assert_close(untied(inputs), shallow(inputs))


def test_a_replicate_that_diverges_is_reported_and_disturbs_no_other() -> None:
    spec = CEMSpec(width=12, hidden=16, steps=2)
    inputs, targets = data(0, 1)
    inputs[0] *= 1e200  # its energy overflows at the first step
    model = RegressorStack(spec, 5, streams(0, 1)).double()
    broken, sound = fit(model, inputs, targets, RECIPE, [s.generator(Stream.BATCHES) for s in streams(0, 1)])
    alone, (error,) = train(spec, 1)
    assert broken.diverged_at == 0
    assert broken.held_out_rmse == math.inf
    assert sound.diverged_at is None
    assert sound.held_out_rmse == pytest.approx(error, rel=1e-10)
    torch.testing.assert_close(model.readout[1], alone.readout[0], rtol=1e-9, atol=1e-11)


def test_the_weights_kept_are_those_that_were_best_on_the_points_held_out() -> None:
    model, (error,) = train(SPECS[0], 0)
    inputs, targets = data(0)
    n = 256 - 32
    with torch.no_grad():
        again = (model(inputs[:, n:]) - targets[:, n:]).square().mean().sqrt()
    assert float(again) == pytest.approx(error, rel=1e-12)


def test_a_model_runs_at_another_depth_than_it_was_trained_at() -> None:
    inputs, _ = data(0)
    model = RegressorStack(CEMSpec(width=12, hidden=16, steps=2), 5, streams(0)).double()
    deeper = RegressorStack(CEMSpec(width=12, hidden=16, steps=5), 5, streams(0)).double()
    assert torch.equal(model(inputs, steps=5), deeper(inputs))


@pytest.mark.slow
def test_the_compiled_training_finds_the_same_weights_to_float_tolerance() -> None:
    spec = CEMSpec(width=12, hidden=16, steps=2)
    eager, (error,) = train(spec, 0)
    compiled, (compiled_error,) = train(spec, 0, recipe=Recipe(60, 32, check_every=10, compiled=True))
    assert compiled_error == pytest.approx(error, rel=1e-9)
    torch.testing.assert_close(compiled.readout, eager.readout, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        *((Recipe, {name: 0}, "must") for name in ("steps", "batch", "learning_rate")),
        *((Recipe, options, "must") for options in ({"learning_rate": math.inf}, {"held_out": 1.0})),
        *((CEMSpec, {name: 0}, "at least 1") for name in ("steps", "width", "hidden", "rank")),
        (lambda width: RegressorStack(CEMSpec(width=width), 5, streams(0)), {"width": 4}, "cannot hold 5 inputs"),
    ],
)
def test_what_makes_no_sense_is_refused_in_a_sentence(make: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make(**options)
