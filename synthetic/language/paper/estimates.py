"""What a study takes, said before it is begun: counted on the meta device, at a speed that is stated."""

from __future__ import annotations

from dataclasses import dataclass

from synthetic.language.paper.cells import count, measured
from synthetic.language.paper.studies import TINY, StudyPlan, Variant
from synthetic.language.training.machine import one_thread, peak_flops

# NVIDIA's data sheet of an H100 SXM: dense bfloat16, without sparsity.
H100_TFLOPS = 989.0
# Of which large training runs reach about so much.
GPU_UTILISATION = 0.4
# Of a core's matrix products, models of the tiny size reached 21 to 24 %, validation included, where it was measured.
CPU_UTILISATION = 0.22


@dataclass(frozen=True)
class Speed:
    """Useful FLOP/s of one device, and in words what they are of."""

    flops_per_second: float
    words: str


@dataclass(frozen=True)
class Forecast:
    """What one training takes.

    Attributes:
        parameters: of the model. tokens: predicted in training. flops: of all steps; causal attention as if dense.
        hours: of one device. memory: bytes of weights, gradients and optimiser state, without activations.
        checkpoint: bytes of one.
    """

    parameters: int
    tokens: int
    flops: float
    hours: float
    memory: int
    checkpoint: int


def speed_of(plan: StudyPlan, tflops: float | None) -> Speed:
    """The speed that an estimate of a study is made at.

    Args:
        tflops: useful TFLOP/s, if the user knows better.
    """
    return speed_at(plan.size != TINY, tflops)


def speed_at(gpu: bool, tflops: float | None) -> Speed:
    """The speed of a GPU, or of one core of this machine.

    Args:
        tflops: useful TFLOP/s, if the user knows better.
    """
    if tflops is not None:
        return Speed(tflops * 1e12, f"{tflops:g} useful TFLOP/s of one device, as given")
    if not gpu:
        with one_thread():
            peak = peak_flops("cpu", "float32")
        return Speed(
            CPU_UTILISATION * peak,
            f"{CPU_UTILISATION:.0%} of the {peak / 1e9:,.0f} GFLOP/s that one core of this machine reaches",
        )
    return Speed(
        GPU_UTILISATION * H100_TFLOPS * 1e12, f"{GPU_UTILISATION:.0%} of the {H100_TFLOPS:g} TFLOP/s of one H100"
    )


def forecast(plan: StudyPlan, variant: Variant, speed: Speed) -> Forecast:
    """One training of a variant."""
    parameters = count(variant.looped)
    tokens = plan.recipe.tokens
    flops = tokens * measured(variant.looped, plan.recipe.context).training
    hours = flops / speed.flops_per_second / 3600
    return Forecast(parameters, tokens, flops, hours, 16 * parameters, 12 * parameters)


def forecasts(plan: StudyPlan, speed: Speed) -> dict[str, Forecast]:
    """One training of each variant of a study, by name."""
    return {variant.name: forecast(plan, variant, speed) for variant in plan.variants}
