"""The statistics are right as often as they claim."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
import scipy

from cemverify.results.statistics import (
    FEWEST,
    compare,
    correct,
    holm,
    mean_interval,
    paired_ratio,
    sign_flip,
    smallest_detectable,
    spread,
    t_test,
)


def pairs(n: int, ratio: float, noise: float, seed: int) -> tuple[list[float], list[float]]:
    """Errors of two models on the same n tasks, which differ widely in difficulty."""
    rng = np.random.default_rng(seed)
    difficulty = np.exp(rng.standard_normal(n))
    return (list(difficulty * ratio * np.exp(noise * rng.standard_normal(n))), list(difficulty))


def test_a_spread_divides_by_n_minus_one_and_says_nothing_at_n_one() -> None:
    assert spread([1.0, 3.0]).std == pytest.approx(math.sqrt(2))
    assert spread([1.0]).std is None


def test_a_paired_ratio_covers_the_truth_as_often_as_it_says() -> None:
    intervals = [paired_ratio(*pairs(5, 0.9, 0.05, seed)) for seed in range(1000)]
    covered = sum(r.low <= 0.9 <= r.high for r in intervals if r.low is not None and r.high is not None)
    low, high = scipy.stats.binom.interval(1 - 1e-6, 1000, 0.95)
    assert low <= covered <= high


def test_a_ratio_of_one_pair_has_no_interval_and_unpaired_values_are_refused() -> None:
    assert paired_ratio([2.0], [1.0]) == paired_ratio([4.0], [2.0])
    assert paired_ratio([2.0], [1.0]).low is None
    with pytest.raises(ValueError, match="zip"):
        paired_ratio([1.0, 2.0], [1.0])


def test_the_paired_t_test_agrees_with_scipy() -> None:
    values, references = pairs(10, 0.95, 0.1, 0)
    logs = np.log(values) - np.log(references)
    assert t_test(list(logs)) == pytest.approx(scipy.stats.ttest_1samp(logs, 0.0).pvalue)


def test_five_pairs_cannot_reach_significance_by_sign_flips_and_six_can() -> None:
    assert sign_flip([1.0] * 5) == 2 / 2**5 > 0.05
    assert sign_flip([1.0] * FEWEST) == 2 / 2**FEWEST < 0.05


def test_many_pairs_are_flipped_at_random_but_the_same_way_each_time() -> None:
    logs = list(np.random.default_rng(0).standard_normal(40) + 0.5)
    assert sign_flip(logs) == sign_flip(logs)
    assert 0 < sign_flip(logs) == pytest.approx(t_test(logs), abs=0.01)


def test_holms_method_multiplies_the_smallest_most_and_never_reorders() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.6, 0.7]) == [1.0, 1.0]
    assert holm([]) == []


def test_the_smallest_detectable_difference_is_detected_in_eighty_per_cent_of_studies() -> None:
    noise, n = 0.05, 10
    exact = list(noise * scipy.stats.zscore(np.arange(n), ddof=1))  # logs with exactly this standard deviation
    ratio = 1 + smallest_detectable(exact)
    detected = sum(
        t_test(list(np.log(values) - np.log(references))) < 0.05
        for values, references in (pairs(n, ratio, noise, seed) for seed in range(1000))
    )
    low, high = scipy.stats.binom.interval(1 - 1e-6, 1000, 0.8)
    assert low <= detected <= high


def test_no_difference_is_called_one_in_at_most_five_per_cent_of_tables() -> None:
    wrong = 0
    for table in range(150):
        compared = correct([compare(*pairs(8, 1.0, 0.1, 10 * table + i)) for i in range(6)])
        wrong += any(c.conclusion in ("better", "worse") for c in compared)
    assert wrong <= scipy.stats.binom.ppf(1 - 1e-6, 150, 0.05)


@pytest.mark.parametrize(
    ("ratio", "noise", "verdict"),
    [(0.9, 0.02, "better"), (1.1, 0.02, "worse"), (1.0, 0.005, "equivalent"), (1.0, 0.3, "inconclusive")],
)
def test_a_comparison_has_four_verdicts(ratio: float, noise: float, verdict: str) -> None:
    assert compare(*pairs(10, ratio, noise, 0)).conclusion == verdict


@pytest.mark.parametrize("n", [1, 2, FEWEST - 1, FEWEST])
def test_too_few_pairs_give_no_p_value_and_no_verdict_however_clear_they_are(n: int) -> None:
    for ratio in (0.5, 1.0):
        compared = correct([compare(*pairs(n, ratio, 1e-4, 0))])[0]
        assert (compared.conclusion == "too few", compared.holm is None) == (n < FEWEST, n < FEWEST)


def test_the_interval_of_a_mean_error_stays_above_zero_and_is_that_of_the_mean_where_errors_are_alike() -> None:
    low, high = mean_interval(0.25, 0.1, 2) or (0.0, 0.0)
    assert 0 < low < 0.25 < high
    alike = [1.0, 1.001, 1.002, 0.999, 0.998]
    plain = scipy.stats.t.interval(0.95, 4, np.mean(alike), scipy.stats.sem(alike))
    assert mean_interval(**asdict(spread(alike))) == pytest.approx(plain, abs=1e-5)
    assert mean_interval(0.25, None, 1) is mean_interval(0.0, 0.0, 3) is None


def test_what_is_equivalent_depends_on_the_margin_of_the_study() -> None:
    pair = pairs(10, 1.01, 0.002, 0)
    assert compare(*pair, margin=0.02).conclusion == "equivalent"
    assert compare(*pair, margin=0.005).conclusion == "worse"


def test_a_model_compared_with_itself_is_equivalent() -> None:
    values, _ = pairs(10, 1.0, 0.1, 0)
    compared = correct([compare(values, values)])[0]
    assert compared.conclusion == "equivalent"
    assert compared.t_test == 1.0
    assert compared.detectable == 0.0
