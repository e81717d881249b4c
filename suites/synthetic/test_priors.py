"""Priors: the meaning of their texts, that each is a kernel in every dimension, and what is refused."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import gpytorch
import pytest
import torch
from torch import Tensor

from cemverify.console.errors import UsageError
from cemverify.results.envelope import read
from suites.kit.commands import Told
from synthetic.gp import priors, sampling
from synthetic.gp.kernels import evaluate
from synthetic.gp.sampling import covariance, factorise, posterior
from synthetic.gp.tasks import TaskConfig

OWN = "suites.synthetic.own_kernels"

SINGLE = tuple(priors.FAMILIES)
COMPOSED = (
    "rbf(lengthscale=2) + 0.1*linear",
    "0.5*rbf*periodic + matern12(lengthscale=3)",
    "(rbf + constant)*(matern32 + 2*linear)*rational-quadratic(alpha=0.3)",
    "warped(changepoint(rbf, gibbs), amplitude=1, frequency=6)",
    "modulated(additive(0.5*periodic(lengthscale=1) + matern52), depth=-1)",
    f"{OWN}:Deep + 0.5*{OWN}:Deep(width=2)",
    f"{OWN}:ready*rbf",
)


def points(n: int, d: int, seed: int = 0) -> Tensor:
    """Uniform in [-1, 1]^d: (n, d)."""
    return 2 * torch.rand(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) - 1


def dense(text: str, x: Tensor) -> Tensor:
    return covariance(priors.kernel(text, x.shape[1]), x)


def is_positive_semi_definite(matrix: Tensor) -> bool:
    """Up to rounding: errors of a few ulp of the largest entry move eigenvalues by n times that."""
    slack = 8 * len(matrix) * torch.finfo(torch.float64).eps * float(matrix.abs().max())
    return float(torch.linalg.eigvalsh(matrix)[0]) >= -slack


# --- positive semi-definite ---------------------------------------------------------------------


@pytest.mark.parametrize("dimensions", [1, 2, 10])
@pytest.mark.parametrize("text", SINGLE + COMPOSED)
def test_every_prior_is_positive_semi_definite(text: str, dimensions: int) -> None:
    K = dense(text, points(250, dimensions))
    assert torch.equal(K, K.mT)
    assert is_positive_semi_definite(K)


@pytest.mark.parametrize("dimensions", [1, 2, 10])
@pytest.mark.parametrize("name", [name for name, family in priors.FAMILIES.items() if family.ard])
def test_priors_with_a_lengthscale_for_each_input_are_too(name: str, dimensions: int) -> None:
    lengths = [0.5 + i for i in range(dimensions)]
    x = points(250, dimensions)
    K = dense(f"{name}(lengthscale={lengths})", x)
    assert is_positive_semi_definite(K)
    if name != "periodic":  # it maps onto a circle first
        torch.testing.assert_close(K, dense(f"{name}(lengthscale=1)", x / torch.tensor(lengths)), rtol=0, atol=1e-7)


# --- what they are ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", SINGLE + COMPOSED)
def test_the_variances_are_the_diagonal_of_the_covariance(text: str) -> None:
    x = points(40, 3)
    with torch.no_grad():
        variances = evaluate(priors.kernel(text, 3), x, x, diag=True)
    torch.testing.assert_close(variances, dense(text, x).diagonal(), rtol=1e-12, atol=1e-12)


def test_covariances_do_not_depend_on_how_points_fall_into_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = points(100, 10)
    for text in ("matern12", "gibbs", "rbf + linear"):
        whole = dense(text, x)
        with monkeypatch.context() as patched:
            patched.setattr("synthetic.gp.sampling.BLOCK", 32)
            torch.testing.assert_close(dense(text, x), whole, rtol=0, atol=1e-14)


def test_the_periodic_prior_is_gpytorchs_and_repeats_after_its_period() -> None:
    x = points(50, 10)
    kernel = gpytorch.kernels.PeriodicKernel().double()
    kernel.period_length, kernel.lengthscale = (torch.tensor(v, dtype=torch.float64) for v in (0.7, 10.0))
    text = "periodic(lengthscale=10, period=0.7)"
    torch.testing.assert_close(dense(text, x), evaluate(kernel, x, x).detach(), rtol=0, atol=1e-13)
    assert float(dense(text, torch.cat([x[:1], x[:1] + 0.7]))[0, 1]) == pytest.approx(1.0, abs=1e-13)


@pytest.mark.parametrize("name", ["gibbs", "warped", "modulated", "changepoint"])
def test_non_stationary_priors_are_not_stationary_and_the_rbf_is(name: str) -> None:
    x = torch.zeros(4, 10, dtype=torch.float64)
    x[:, 0] = torch.tensor([-0.25, 0.25, 0.5, 1.0])  # two pairs at the same distance
    for text, stationary in (("rbf", True), (name, False)):
        K = dense(text, x)
        assert (abs(float(K[0, 1] - K[2, 3])) < 1e-12) == stationary


def test_hyperparameters_are_float64_to_the_last_digit() -> None:
    kernel = priors.kernel("0.1*rational-quadratic(lengthscale=0.3, alpha=0.7)", 10)
    values = [kernel.outputscale.item(), kernel.base_kernel.lengthscale.item(), kernel.base_kernel.alpha.item()]
    assert values == pytest.approx([0.1, 0.3, 0.7], rel=1e-14)  # float32 would be off by 1e-8


def test_a_kernel_of_ones_own_is_copied_and_not_changed() -> None:
    from suites.synthetic.own_kernels import ready

    priors.kernel(f"{OWN}:ready", 10).lengthscale = 5.0
    assert ready.lengthscale.item() != 5.0


# --- texts --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("rbf", "rbf(lengthscale=2)"),
        (" rbf( lengthscale = 2.0 ) ", "rbf(lengthscale=2)"),
        ("rational-quadratic(alpha=3)", "rational-quadratic(lengthscale=2, alpha=3)"),
        ("rbf+0.1*linear*matern12", "rbf(lengthscale=2) + 0.1*linear*matern12(lengthscale=2)"),
        ("2*(rbf+linear)*0.5*matern12", "(rbf(lengthscale=2) + linear)*matern12(lengthscale=2)"),
        ("additive", "additive(rbf(lengthscale=0.5))"),
        ("rbf(lengthscale=[1, 2e0])", "rbf(lengthscale=[1, 2])"),
        (
            "changepoint(linear, rbf, location=-1e-3,)",
            "changepoint(linear, rbf(lengthscale=2), location=-0.001, steepness=4)",
        ),
        (f"{OWN}:Deep(width=3)", f"{OWN}:Deep(width=3)"),
    ],
)
def test_texts_that_mean_the_same_prior_have_one_canonical_form(text: str, canonical: str) -> None:
    assert priors.canonical(text, 2) == canonical
    assert priors.canonical(canonical, 2) == canonical


@pytest.mark.parametrize("text", SINGLE + COMPOSED)
def test_a_canonical_text_is_the_same_kernel(text: str) -> None:
    x = points(20, 3)
    assert torch.equal(dense(text, x), dense(priors.canonical(text, 3), x))


def test_configurations_of_one_task_are_equal_and_plain() -> None:
    short = TaskConfig("rbf+linear")
    assert short == TaskConfig("rbf(lengthscale=2.0) + 1*linear")
    assert all(isinstance(value, str | int | float) for value in asdict(short).values())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rfb", "unknown prior 'rfb'; choose from rbf, matern12, .*, or name your own as module:object"),
        ("", "prior '': at its end, this cannot be read; a prior is written like"),
        ("rbf(lengthscale)", r"rbf expects no inner kernel\(s\) and got 1"),
        ("rbf(lengthscale=)", r"at '\)', this cannot be read"),
        ("rbf(2)", r"at '2\)', a number alone is not a kernel .*, a parameter as lengthscale=2"),
        ("rbf rbf", "at 'rbf', this cannot be read"),
        ("rbf - linear", "at 'rbf - linear', expected a kernel"),
        ("rbf + 2", "at '2', a number alone is not a kernel"),
        ("rbf) + (linear", r"at '\) \+ \(linear', this cannot be read"),
        ("rbf # linear", "at '# linear', this cannot be read"),
        ("-1*rbf", "a kernel can be multiplied by positive numbers only, not by -1"),
        ("1e999*rbf", "a kernel can be multiplied by positive numbers only, not by inf"),
        ("rbf(lengthscale=-2)", "the lengthscale of rbf must be a positive number, not -2"),
        ("rbf(lengthscale=nan)", r"at 'nan\)', expected a number or \[a list of numbers\]"),
        ("rbf(length=2)", "rbf has no parameter 'length'; its parameters: lengthscale"),
        ("rbf(lengthscale=1, lengthscale=2)", "lengthscale is given twice"),
        (
            "rbf(lengthscale=[1,2,3])",
            r"rbf has 10 input\(s\) here, but 3 lengthscales were given; give one for each input",
        ),
        ("additive(rbf(lengthscale=[1,2]))", r"rbf has 1 input\(s\) here"),
        ("gibbs(lengthscale=[1,2])", "the lengthscale of gibbs must be one number, not a list"),
        ("linear(rbf)", r"linear expects no inner kernel\(s\) and got 1"),
        ("changepoint(rbf)", r"changepoint expects 2 inner kernel\(s\) and got 1"),
        (f"{OWN}:absent", "has no attribute 'absent'"),
        (f"{OWN}:not_a_kernel", "raised TypeError"),
        (f"{OWN}:broken", "broken raised ValueError: no such material"),
        (f"{OWN}:ready(period=2)", "is already a kernel and takes no parameters; leave them out"),
        (f"{OWN}:Deep(rbf)", "takes named parameters, not kernels"),
    ],
)
def test_what_is_no_prior_is_refused_in_one_sentence(text: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        priors.kernel(text, 10)
    assert "\n" not in str(refused.value)


# --- the command that examines a task, and the page on tasks ------------------------------------------


PAGE = Path(__file__).parent.parent.parent / "docs" / "tasks.md"
SMALL = "--train-points 150 --test-points 50"


def test_examine_says_how_hard_a_task_is_and_that_its_oracles_agree(here: Path, told: Told) -> None:
    printed = told(f"synthetic examine 'rbf + 0.1*linear' {SMALL} --output task.json").out
    assert "agree: mean" in printed
    assert "from the prior" in printed
    content = read(here / "task.json")
    assert content["task"]["prior"] == "rbf(lengthscale=2) + 0.1*linear"
    assert content["agreement"]["worst"] < 1e-6
    assert content["sampler"]["accepted"]
    assert 0 < content["difficulty"]["floor"] < content["difficulty"]["linear"]


def wrong_posterior(joint: Tensor, targets: list[Tensor], noise: float) -> tuple[list[Tensor], Tensor]:
    means, variance = posterior(joint, targets, noise)
    return means, variance * 1.001


def wrong_factor(matrix: Tensor) -> tuple[Tensor, float]:
    factor, jitter = factorise(matrix)
    return factor.tril(-1) + 1.1 * factor.diagonal().diag(), jitter


@pytest.mark.parametrize(
    ("name", "wrong", "prior", "sentence"),
    [  # priors that no other test uses, so they are not cached
        ("posterior", wrong_posterior, "matern32(lengthscale=1.25)", "DISAGREE, by more than 1e-06"),
        ("factorise", wrong_factor, "matern32(lengthscale=1.75)", "NOT FROM THE PRIOR"),
    ],
)
def test_examine_fails_if_oracle_or_sampler_is_wrong(
    name: str, wrong: object, prior: str, sentence: str, monkeypatch: pytest.MonkeyPatch, told: Told
) -> None:
    monkeypatch.setattr(sampling, name, wrong)
    assert sentence in told(f"synthetic examine '{prior}' {SMALL}", 1).out


def test_the_page_on_tasks_lists_every_prior() -> None:
    page = PAGE.read_text()
    assert [line for line in priors.describe().splitlines() if line not in page] == []
