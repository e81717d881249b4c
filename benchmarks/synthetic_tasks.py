"""The recursion study's two costs: models trained together against one after the other, functions drawn together."""

from __future__ import annotations

from typing import Any

import torch

from benchmarks.measuring import in_turn, ratio, show_ratio
from cemverify.results.envelope import Table
from synthetic.gp.sampling import covariance, factorise
from synthetic.gp.tasks import Streams
from synthetic.studies.recursion.regressors import CEMSpec, RegressorStack


def ensembles(models: int, rounds: int, seconds: float) -> tuple[Table, Any]:
    """A training step of S regressors as one stack, against S stacks of one."""
    rows, data = [], []
    for batch in (64, 128, 256):
        for T in (1, 4):
            spec = CEMSpec(steps=T)
            streams = [Streams(0, "benchmark", seed) for seed in range(models)]
            stack = RegressorStack(spec, 10, streams)
            single = [RegressorStack(spec, 10, [one]) for one in streams]
            x = torch.randn(models, batch, 10, generator=torch.Generator().manual_seed(0))

            def together(stack: RegressorStack = stack, x: torch.Tensor = x) -> None:
                stack(x).square().sum().backward()
                stack.zero_grad()

            def one_by_one(single: list[RegressorStack] = single, x: torch.Tensor = x) -> None:
                for i, model in enumerate(single):
                    model(x[i : i + 1]).square().sum().backward()
                    model.zero_grad()

            timings = in_turn({"together": together, "one by one": one_by_one}, "cpu", rounds, seconds / 6)
            measured = ratio(timings["one by one"], timings["together"])
            rows.append([batch, T, show_ratio(measured)])
            data.append({"batch": batch, "steps": T, **{k: list(t.seconds) for k, t in timings.items()}})
    title = f"{models} regressors, forward and backward: one by one / together"
    return Table(title, ("batch", "T", "time ratio"), rows), data


def sampler(functions: int, rounds: int, seconds: float) -> tuple[Table, Any]:
    """Functions drawn from one factor, against a factor for each."""
    from gpytorch.kernels import RBFKernel

    kernel = RBFKernel().double()
    kernel.lengthscale = 1.5
    rows, data = [], []
    for n in (256, 512, 1024):
        x = 2 * torch.rand(n, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) - 1
        z = torch.randn(n, functions, dtype=torch.float64, generator=torch.Generator().manual_seed(1))

        def together(x: torch.Tensor = x, z: torch.Tensor = z) -> None:
            factorise(covariance(kernel, x))[0] @ z

        def one_by_one(x: torch.Tensor = x, z: torch.Tensor = z) -> None:
            for i in range(functions):
                factorise(covariance(kernel, x))[0] @ z[:, i]

        timings = in_turn({"together": together, "one by one": one_by_one}, "cpu", rounds, seconds / 3)
        measured = ratio(timings["one by one"], timings["together"])
        rows.append([f"{n:,}", show_ratio(measured)])
        data.append({"points": n, **{k: list(t.seconds) for k, t in timings.items()}})
    return Table(f"{functions} functions drawn at n points: one by one / together", ("n", "time ratio"), rows), data
