"""Examines one task: how hard it is, whether two oracles agree, and whether draws come from its prior."""

from __future__ import annotations

import argparse
from dataclasses import asdict, dataclass, replace
from textwrap import indent
from typing import TYPE_CHECKING

import torch

from cemverify.console.parsing import count, path, positive, seed
from cemverify.console.streams import note
from cemverify.results import envelope, provenance
from cemverify.results.tables import terminal
from synthetic.gp import priors
from synthetic.gp.difficulty import Difficulty, assess, is_negative_control
from synthetic.gp.distribution import FALSE_ALARM, DrawsTest, check_draws
from synthetic.gp.tasks import Stream, Streams, Task, TaskConfig, draw, draw_many

if TYPE_CHECKING:
    from synthetic.gp.oracle import OracleAgreement

# If two oracles differ by more than this, one is wrong.
AGREEMENT = 1e-6

# Beyond this many points scikit-learn, which stores several dense matrices, gets a smaller task instead.
SECOND_OPINION, SMALLER = 8192, (2048, 512)

# The draws of the self-test: functions, and points of each.
TEST_DRAWS, TEST_POINTS = 8, 1000

DESCRIPTION = """\
Draws one regression task from a Gaussian-process prior and reports how hard it is, whether its exact posterior agrees
with scikit-learn's, and whether the sampler draws functions from the prior.

The floor is the root of the least mean squared error that a predictor can have over all functions that fit the
training set. On a single function the RMSE of a good predictor may lie below it.
"""

EPILOG = """\
priors, with their defaults, s = (x_1 + ... + x_d) / sqrt(d):
{priors}
  module:object       a GPyTorch kernel of your own, or a function that returns one: mykernels:Spectral(period=3)

Priors can be added, multiplied and scaled: "rbf(lengthscale=2) + 0.1*linear". A lengthscale may be a list with one
value per input: "rbf(lengthscale=[1,1,4])".

Exit code: 0; 1 if the oracles differ by more than {agreement:g} or the sampler fails its test (a correct one
fails once in {alarms:,.0f} runs); 2 if the arguments are invalid.

examples:
  python -m synthetic examine rbf
  python -m synthetic examine "rbf(lengthscale=2) + 0.1*linear" --train-points 4096
  python -m synthetic examine "warped(matern52) + 0.1*linear"
""".format(priors=indent(priors.describe(), "  "), agreement=AGREEMENT, alarms=1 / FALSE_ALARM)


@dataclass(frozen=True)
class Examination:
    """The results for one task."""

    task: Task
    difficulty: Difficulty
    # of the two oracles on `agreement_points` points, those of the task or of a smaller one drawn in the same way
    agreement: OracleAgreement
    agreement_points: int
    sampler: DrawsTest  # of draws at `TEST_POINTS` other points from the same prior in the same way

    @property
    def passed(self) -> bool:
        """The oracles agree, and the draws come from the prior."""
        return self.sampler.accepted and self.agreement.worst <= AGREEMENT


def examine(config: TaskConfig, streams: Streams) -> Examination:
    """Draws a task and examines it."""
    from synthetic.gp.oracle import covariance, second_opinion  # scikit-learn takes seconds to import

    task = draw(config, streams)
    small = task
    if config.points > SECOND_OPINION:
        small = draw(replace(config, train_points=SMALLER[0], test_points=SMALLER[1]), streams)
    # the test values are the draws without noise; the training set cannot be empty
    tasks = draw_many(replace(config, train_points=2, test_points=TEST_POINTS), streams, TEST_DRAWS)
    x = tasks[0].test_inputs
    values = torch.stack([task.test_values for task in tasks])  # (TEST_DRAWS, TEST_POINTS)
    kernel = priors.kernel(config.prior, config.dimensions)
    exact = torch.from_numpy(covariance(kernel, x.numpy(), x.numpy()))  # an independent implementation
    exact.diagonal().add_(tasks[0].jitter)
    sampler = check_draws(values, exact, streams.generator(Stream.SELF_TEST))
    return Examination(task, assess(task), second_opinion(small), small.config.points, sampler)


# --- the command --------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `python -m synthetic examine`."""
    parser.add_argument("prior", metavar="PRIOR", help="the prior that the function is drawn from")
    parser.add_argument(
        "--dimensions", type=count, default=10, metavar="D", help="number of inputs (default: %(default)s)"
    )
    parser.add_argument("--train-points", type=count, default=1024, metavar="N", help="default: %(default)s")
    parser.add_argument("--test-points", type=count, default=1024, metavar="N", help="default: %(default)s")
    parser.add_argument(
        "--noise", type=positive, default=0.1, metavar="SD", help="noise on training targets (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=seed, default=0, metavar="N", help="seed of every random stream (default: %(default)s)"
    )
    parser.add_argument("--output", type=path, metavar="FILE", help="also write the result as JSON")


def run(options: argparse.Namespace) -> int:
    """Examines the task that the options ask for; returns the exit code."""
    sizes = (options.dimensions, options.train_points, options.test_points)
    config = TaskConfig(options.prior, *sizes, options.noise)
    envelope.check_outputs(options.output)
    maker = provenance.Maker.now(options.again, asdict(config), options.seed, "cpu")
    torch.set_num_threads(1)  # one thread gives the same bits everywhere
    note(f"drawing {config.points} points ...")
    examination = examine(config, Streams(options.seed, config.prior, options.seed))
    figures = table(examination)
    if options.output is not None:
        envelope.write(options.output, envelope.result("examine", maker, [figures], payload(examination)))
        note(f"wrote {options.output}")
    envelope.show(terminal([figures]))
    return 0 if examination.passed else 1


def table(examination: Examination) -> envelope.Table:
    """What an examination found, as a table for a terminal."""
    task, difficulty, config = examination.task, examination.difficulty, examination.task.config
    agreement, sampler = examination.agreement, examination.sampler
    title = (
        f"{config.prior}: {config.dimensions} inputs, {config.train_points} training and {config.test_points} test "
        f"points, noise {config.noise:g}"
    )
    objection = difficulty.objection or "none: worth a comparison"
    shared = "" if agreement.independent else "; the covariance is the kernel's own, so only the algebra is checked"
    agree = "agree" if agreement.worst <= AGREEMENT else f"DISAGREE, by more than {AGREEMENT:g}"
    agree += f": mean {agreement.mean:.0e}, variance {agreement.variance:.0e}, floor {agreement.floor:.0e}, "
    drawn = "from the prior" if sampler.accepted else "NOT FROM THE PRIOR"
    drawn += f": {TEST_DRAWS} draws at {TEST_POINTS} points, p = {sampler.whiteness:.2g} (whitened), "
    rows: list[list[envelope.Cell]] = [
        ["sampling", task.sampling],
        ["prior standard deviation", f"{difficulty.prior_std:.4f}"],
        ["RMSE of a linear fit", f"{difficulty.linear:.4f}"],
        ["floor (least root mean squared error over functions)", f"{difficulty.floor:.4f}"],
        ["floor / linear", f"{difficulty.floor / difficulty.linear:.3f}"],
        ["objection", f"{objection} (declared negative control)" if is_negative_control(config) else objection],
        ["oracle agreement with scikit-learn", f"{agree}at {examination.agreement_points} points{shared}"],
        ["sampler self-test", f"{drawn}{sampler.pairs:.2g} (pairs)"],
    ]
    return envelope.Table(title, ["question", "answer"], rows)


def payload(examination: Examination) -> dict[str, object]:
    """What an examination found, as plain values for its result file."""
    task, agreement, sampler = examination.task, examination.agreement, examination.sampler
    return {
        "task": {**asdict(task.config), "sampling": task.sampling, "jitter": task.jitter},
        "difficulty": {**asdict(examination.difficulty), "objection": examination.difficulty.objection},
        "negative_control": is_negative_control(task.config),
        "agreement": {**asdict(agreement), "worst": agreement.worst, "points": examination.agreement_points},
        "sampler": {**asdict(sampler), "accepted": sampler.accepted, "false_alarm": FALSE_ALARM},
        "passed": examination.passed,
    }
