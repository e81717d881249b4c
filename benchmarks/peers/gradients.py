"""`torch.autograd.gradcheck` of every function, and one step against autograd of the energy that the layer states."""

from __future__ import annotations

from unittest import SkipTest

from torch import Tensor
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

from benchmarks.peers.cases import Case, call, case, change, configurations, layer_case
from cemverify import EnergyLayer, Implementation

SMALL = {"dim": 4, "heads": 2, "head_dim": 2, "hidden": 3}
ONE_STEP = {"steps", "norm:scalar", "norm:channel", "norm:folded"}


def test_gradcheck_of_every_function(layer: Implementation) -> None:
    if layer.arrays != "torch" or "gradients" in layer.not_offered:
        raise SkipTest("it records no gradients")
    for name in layer.functions:
        for config in configurations(layer, name, SMALL):
            asked = case(layer, config, tokens=3)
            names = list(asked.weights)
            same = asked.x is asked.h or name in ("block", "decode")

            def answer(
                *arrays: Tensor, same: bool = same, asked: Case = asked, names: list[str] = names, name: str = name
            ) -> Tensor:
                x, h = (arrays[0], arrays[0]) if same else arrays[:2]
                given = arrays[1 if same else 2 :]
                return call(layer, name, Case(x, h, dict(zip(names, given, strict=True)), asked.config))

            arrays = [asked.h] if same else [asked.x, asked.h]
            arrays = [a.clone().requires_grad_() for a in (*arrays, *asked.weights.values())]
            assert gradcheck(answer, arrays, fast_mode=True), f"{name}, {config}"


def test_one_step_is_the_gradient_of_the_stated_energy(layer: Implementation) -> None:
    if layer.arrays != "torch" or not {"attention_energy", "mlp_energy"} & layer.functions.keys():
        raise SkipTest("it states no energy that autograd can take")
    for name in ("attention", "mlp"):
        if f"{name}_energy" not in layer.functions:
            continue
        for config in configurations(layer, name, SMALL):
            if config.steps > 1 or config.norm != "none" or config.preconditioner.kind != "identity":
                continue
            asked = case(layer, config, tokens=3)
            x = asked.x.clone().requires_grad_()
            energy = call(layer, f"{name}_energy", Case(x, asked.h, asked.weights, config))
            (slope,) = grad(energy.sum(), x)
            assert_close(call(layer, name, asked), asked.x - config.step_size * slope, msg=f"{name}, {config}")


def test_energy_layer_gradcheck(layer: EnergyLayer) -> None:
    if layer.arrays != "torch" or {"gradients", "autograd"} & layer.not_offered.keys():
        raise SkipTest("it records no gradients")
    if layer.working_dtype != "float64":
        raise SkipTest("gradcheck needs float64")
    arguments = [a.requires_grad_() for a in layer_case(layer, tokens=3)]
    assert gradcheck(lambda *a: change(layer, list(a)), arguments)
    if layer.energy is not None and not layer.reads_itself and layer.state_map is None:
        assert gradcheck(layer.energy, arguments)


def test_energy_layer_step_is_the_gradient_of_its_energy(layer: EnergyLayer) -> None:
    for seed in range(3):
        compare_step(layer, 5, seed)


def compare_step(layer: EnergyLayer, tokens: int, seed: int) -> None:
    """What a call adds against the steps that its declaration implies, by autograd of its energy."""
    step = layer.step
    if layer.energy is None or layer.arrays != "torch" or step.kind != "gradient" or step.varying or step.momentum:
        raise SkipTest("its step is not known beforehand")
    if layer.state_map or layer.lagrangian or layer.leak or step.moving or step.unknown_preconditioner:
        raise SkipTest("its step is not known beforehand")
    arguments = layer_case(layer, tokens, seed)
    x = arguments[0]
    for eta in step.sizes:
        g = x.detach().clone().requires_grad_()
        memory = [x.detach()] if layer.reads_itself else arguments[1:]
        energy = layer.energy(g, *memory)
        values = x.shape[0] if "batch" in layer.stated.mean_over else 1
        values *= x.shape[1] if "tokens" in layer.stated.mean_over else 1
        (slope,) = grad(energy.sum() * (values if layer.stated.step_of == "sum" else 1), g)
        P = step.preconditioner
        if callable(P):
            slope = P(slope)
        elif P is not None:
            slope = P * slope if P.ndim == 1 else slope @ P.mT
        x = x - eta * slope
    assert_close(change(layer, arguments), x - arguments[0])
