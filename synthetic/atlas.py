"""The difficulty atlas: how hard each prior is, at each lengthscale and number of training points.

Presets are chosen from it, and it is a page of the documentation.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from textwrap import indent

import torch

from cemverify.console.parsing import count, path, seed
from cemverify.console.streams import note
from cemverify.results import envelope, provenance
from cemverify.results.tables import markdown, terminal
from synthetic.gp import priors
from synthetic.gp.difficulty import (
    EASIEST,
    HARDEST,
    NEGATIVE_CONTROLS,
    Difficulty,
    assess,
    average,
    is_negative_control,
)
from synthetic.gp.tasks import EXACT_POINTS, FEATURES, Streams, TaskConfig, draw_many

POINTS = (256, 1024, 4096)
TEST_POINTS = 1024

# The error of a linear fit varies by some 5 % between functions. All functions share one factorisation.
FUNCTIONS = 16
OUTPUT = Path("out/atlas.json")

# Each family, and the lengthscales (its own, or that of the kernel inside it) that are worth surveying.
ENTRIES: Mapping[str, Sequence[str]] = {
    "rbf(lengthscale={})": ("1", "2", "4", "8"),
    "matern12(lengthscale={})": ("2", "8"),
    "matern32(lengthscale={})": ("1", "2", "4", "8"),
    "matern52(lengthscale={})": ("1", "2", "4", "8"),
    "rational-quadratic(lengthscale={}, alpha=1)": ("1", "2", "4", "8"),
    "periodic(lengthscale={}, period=2)": ("1", "3", "10", "30"),
    "additive(rbf(lengthscale={}))": ("0.1", "0.5", "2"),
    "gibbs(lengthscale={}, contrast=0.5)": ("1", "2", "4"),
    "warped(rbf(lengthscale={}), amplitude=0.3, frequency=3)": ("1", "2", "4"),
    "modulated(rbf(lengthscale={}), depth=0.5)": ("1", "2", "4"),
    "changepoint(rbf(lengthscale=4), rbf(lengthscale={}), location=0, steepness=4)": ("1", "2"),
    "rbf(lengthscale={}) + 0.1*linear": ("2",),
    "rbf(lengthscale={})*periodic(lengthscale=10, period=2)": ("4",),
    "linear": ("",),
}

DESCRIPTION = f"""\
Draws tasks from each prior at several lengthscales and numbers of training points (10 inputs, noise 0.1), and
compares the floor, the smallest root of the mean squared error over functions, with the error of a linear fit. A
task is not accepted as a preset if the floor is above {HARDEST} of the error of the linear fit (nothing to learn), or
if that error is below {EASIEST} of the prior standard deviation (nothing beyond linear).
"""

EPILOG = """\
Takes four minutes on an idle core, or a few seconds without the last column (--points 256 1024).

examples:
  python -m synthetic atlas --markdown docs/tasks.md
  python -m synthetic atlas --prior "matern52(lengthscale=3)" "rbf + linear" --points 512 2048
"""


@dataclass(frozen=True)
class PriorDifficulty:
    """One prior and its difficulty at each number of training points."""

    prior: str
    negative_control: bool
    difficulties: Mapping[int, Difficulty]

    @property
    def verdict(self) -> str:
        """Whether the task is worth using, and if not, why."""
        if self.negative_control:
            return "negative control"
        refused = {n: d.objection.partition(":")[0] for n, d in self.difficulties.items() if d.objection}
        if not refused:
            return "good"
        reasons = " / ".join(dict.fromkeys(refused.values()))
        return f"{reasons}" + (
            "" if len(refused) == len(self.difficulties) else f" at n = {', '.join(map(str, refused))}"
        )


def survey(texts: Sequence[str], points: Sequence[int], seed: int) -> list[PriorDifficulty]:
    """The difficulty of each prior at each number of training points, with progress on stderr."""
    configs = [[TaskConfig(text, train_points=n, test_points=TEST_POINTS) for n in points] for text in texts]
    total = sum(_cost(config) for row in configs for config in row)
    started, done, entries = time.monotonic(), 0.0, []
    for row in configs:
        difficulties = {}
        for config in row:
            tasks = draw_many(config, Streams(seed, config.prior, seed), FUNCTIONS)
            difficulties[config.train_points] = average([assess(task) for task in tasks])
            done += _cost(config)
        entries.append(PriorDifficulty(row[0].prior, is_negative_control(row[0]), difficulties))
        left = (time.monotonic() - started) * (total - done) / done
        note(f"[{len(entries)}/{len(configs)}] {row[0].prior}: {entries[-1].verdict}; about {left:.0f} s left")
    return entries


def table(entries: Sequence[PriorDifficulty]) -> envelope.Table:
    """One row per prior, with floor / linear fit at each number of points."""
    points = list(entries[0].difficulties)
    rows = [
        [
            entry.prior,
            f"{entry.difficulties[points[-1]].prior_std:.2f}",
            *(f"{d.floor:.3f} / {d.linear:.3f}" for d in entry.difficulties.values()),
            entry.verdict,
        ]
        for entry in entries
    ]
    title = f"Floor / linear fit, RMSE at {TEST_POINTS} test points, 10 inputs, noise 0.1, exact tasks"
    return envelope.Table(title, ["prior", "std", *(f"n = {n}" for n in points), "verdict"], rows)


def page(difficulties: envelope.Table) -> str:
    """The page of the documentation."""
    controls = " and ".join(f"`{text}`" for text in NEGATIVE_CONTROLS)
    return f"""\
# Tasks and their difficulty

The regression tasks are functions drawn from Gaussian processes over [-1, 1]^d, with noise on the training targets.
The posterior of every task is known exactly, and with it the *floor*: the smallest root of the mean squared error
over functions, without noise, that any predictor can reach. On a single function its RMSE may be smaller. This
page is generated by
`python -m synthetic atlas --markdown docs/tasks.md`.

## Priors

A *prior* is the Gaussian process that functions are drawn from, named by its kernel:

{indent(priors.describe(), "    ")}

Here s = (x_1 + ... + x_d) / sqrt(d). Priors can be added, multiplied and scaled by a number:
`rbf(lengthscale=2) + 0.1*linear`. A lengthscale may be a list with one value per input. `module:object` names a
GPyTorch kernel of your own, or a function that returns one. The lengthscale of `periodic` is not squared; this is
GPyTorch's convention. `python -m synthetic examine PRIOR` examines one task: how hard it is, whether its exact
solution agrees with scikit-learn's, and whether its sampler draws from the prior.

## How a task is drawn

Up to {EXACT_POINTS:,} points (training and test points together), the function is drawn exactly, with a float64
Cholesky factor of the covariance of all points. If the covariance is singular to working precision, the smallest
sufficient jitter is added to it. The jitter is printed and counts as part of the function, so the floor takes it into
account.

For more points, or with `--features M`, the function is a sum of M random features ({FEATURES:,} by default) with
normally distributed weights, and the floor comes from Bayesian linear regression on the same features. Both floors
are exact for the function that was drawn. A function of M features has only M degrees of freedom, so with n > M
training points it is much easier to learn than a function from the Gaussian process that it approximates.

## Difficulty

A study does not accept every task as a preset. If the floor is above {HARDEST} of the error of a linear fit, there is
*nothing to learn*. If the error of the linear fit is below {EASIEST} of the prior standard deviation, there is
*nothing beyond linear*. In both cases a table of models would compare noise. Two tasks are kept on purpose as
negative controls, whatever the rule says about them at some n: {controls}. The first leaves little to learn and the
second nothing, so a model that does well on them has seen the test data.

Each figure is the root mean square over {FUNCTIONS} functions on the same points.

{markdown([difficulties]).replace("## ", "### ", 1)}
"""


# --- the command --------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m synthetic atlas`."""
    parser.add_argument(
        "--prior", nargs="+", metavar="PRIOR", help="priors to survey (default: those of docs/tasks.md)"
    )
    parser.add_argument(
        "--points",
        nargs="+",
        type=count,
        default=list(POINTS),
        metavar="N",
        help=f"numbers of training points (default: {' '.join(map(str, POINTS))})",
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="seed of every random stream (default: %(default)s)"
    )
    parser.add_argument(
        "--output", type=path, default=OUTPUT, metavar="FILE", help="result file (default: %(default)s)"
    )
    parser.add_argument("--markdown", type=path, metavar="FILE", help="also write the documentation page")


def run(options: argparse.Namespace) -> int:
    """Makes the atlas and returns the exit code."""
    points = sorted(set(options.points))
    texts = options.prior or [text.format(value) for text, values in ENTRIES.items() for value in values]
    envelope.check_outputs(options.output, options.markdown)
    torch.set_num_threads(1)  # one thread gives the same bits everywhere
    maker = provenance.Maker.now(
        options.again, {"priors": texts, "points": points, "seed": options.seed}, options.seed, "cpu"
    )
    entries = survey(texts, points, options.seed)
    difficulties = table(entries)
    envelope.write(
        options.output, envelope.result("atlas", maker, [difficulties], {"entries": [_record(e) for e in entries]})
    )
    note(f"wrote {options.output}")
    if options.markdown is not None:
        envelope.write_text(options.markdown, page(difficulties))
        note(f"wrote {options.markdown}")
    envelope.show(terminal([difficulties]))
    return 0


def _record(entry: PriorDifficulty) -> dict[str, object]:
    difficulties = [{"train_points": n, **asdict(d), "objection": d.objection} for n, d in entry.difficulties.items()]
    return {
        "prior": entry.prior,
        "negative_control": entry.negative_control,
        "verdict": entry.verdict,
        "difficulties": difficulties,
    }


def _cost(config: TaskConfig) -> float:
    """Roughly proportional to the time a task takes: the kernel, then the factorisations."""
    return (config.points / 1000) ** 2 + (config.points / 2000) ** 3
