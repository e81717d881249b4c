"""How many layers T steps are worth: the number of layers with separate weights that has the same RMSE.

For each function, log RMSE is interpolated linearly in log2 n between stacks of n = 1, 2, 4, 8 layers, up to the best
stack. With gap(n) = log RMSE(T steps) - log RMSE(n layers), the worth is the least n at which the mean gap over
functions is 0. Its interval holds every n that a t test of the gaps does not reject (docs/tasks.md).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cemverify.results.numbers import shown_verdict
from cemverify.results.statistics import FEWEST
from synthetic.studies.recursion.rows import Content, Family, Row, by_depth, errors, marked

Array = np.ndarray[Any, np.dtype[np.float64]]
Errors = Mapping[int, Sequence[float]]  # of each function, by T or by the number of layers

# Grid points: in each octave of layers, and over all exponents.
FINENESS = 256
PAIRS = {
    "steps": (Family.CEM, Family.LAYERS),
    "steps on a refreshed memory": (Family.REFRESHED, Family.LAYERS),
    "uses of one MLP": (Family.REUSED, Family.MLP_LAYERS),
}


@dataclass(frozen=True)
class Crossing:
    """Where a mean over functions rises through 0, with the 95 % interval; infinite beyond the grid."""

    value: float
    low: float
    high: float

    def shown(self, least: str, most: str) -> str:
        """The value and its interval, "1.62 [1.45, 1.83]", or the bound that they are beyond."""
        value, low, high = (
            f"{end:.2f}" if math.isfinite(end) else f"> {most}" if end > 0 else f"< {least}"
            for end in (self.value, self.low, self.high)
        )
        return f"{value} [{low}, {high}]"


def improving(stacks: Errors) -> dict[int, Sequence[float]]:
    """The stacks up to the one with the smallest geometric mean, beyond which more layers do not help."""
    best = min(sorted(stacks), key=lambda n: np.log(stacks[n]).mean())
    return {n: stacks[n] for n in sorted(stacks) if n <= best}


def worth(steps: Sequence[float], stacks: Errors) -> Crossing:
    """The number of layers that steps with these errors are worth, given at least two improving stacks."""
    octaves = np.linspace(0.0, math.log2(max(stacks)), FINENESS * math.ceil(math.log2(max(stacks))) + 1)
    return _crossing(2**octaves, np.log(steps)[:, None] - _between(stacks, octaves))


def exponent(steps: Errors, stacks: Errors) -> tuple[Crossing, float] | None:
    """phi of worth = T^phi, at which the sum over T of log T gap(T^phi) has mean 0; and p of Hotelling's test that
    the residuals of the fit are noise. None for fewer than two T > 1.
    """
    from scipy import stats

    depths = [T for T in sorted(steps) if T > 1]
    if len(depths) < 2:
        return None
    functions = len(steps[depths[0]])
    logs = np.log2(depths)
    phis = np.linspace(0.0, math.log2(max(stacks)) / logs[-1], 4 * FINENESS + 1)
    gaps = np.stack(
        [np.log(steps[T])[:, None] - _between(stacks, phis * log) for T, log in zip(depths, logs, strict=True)]
    )
    phi = _crossing(phis, np.einsum("t,tsg->sg", logs, gaps))  # gaps: (T, S, G)
    if math.isinf(phi.value):
        return phi, 0.0
    at = int(np.searchsorted(phis, phi.value))
    # another phi changes the gaps along their slope; no phi removes what is orthogonal to it
    slope = np.gradient(gaps.mean(1), axis=1)[:, at]
    left = gaps[:, :, at].T @ np.linalg.svd(slope[None])[2][1:].T  # (S, T - 1)
    mean, q = left.mean(0), left.shape[1]
    t2 = functions * mean @ np.linalg.pinv(np.atleast_2d(np.cov(left.T))) @ mean
    return phi, float(stats.f.sf(t2 * (functions - q) / (q * (functions - 1)), q, functions - q))


def sentences(content: Content, rows: Sequence[Row]) -> Iterator[str]:
    """What T steps are worth on a prior; nothing for a study without stacks."""
    for word, (family, stacked) in PAIRS.items():
        used = [by_depth(rows, f) for f in (family, stacked)]
        steps, stacks = ({T: errors(row) for T, row in at.items()} for at in used)
        deep = [T for T in steps if T > 1]
        if not deep or len(stacks) < 2 or 1 not in stacks:
            continue
        improve = improving(stacks)
        most = max(improve)
        if (n := len(stacks[1])) < FEWEST:
            told = [f"what {word} are worth: {shown_verdict('', n, 'functions')}"]
        elif most == 1:
            told = [f"what {word} are worth is not defined: more layers are no better than one"]
        else:
            found = {T: worth(steps[T], improve) for T in deep}
            first = dict.fromkeys(deep[:1], f" {word}")
            told = [f"{T}{first.get(T, '')} are worth {at.shown('1', str(most))} layers" for T, at in found.items()]
            told += [f"worth is not defined beyond {most} layers: more are no better"] * (most < max(stacks))
            told += _fitted({T: steps[T] for T in deep if found[T].value < math.inf}, improve)
        marks = {mark for at in used for row in at.values() if (mark := marked(content, row))}
        shown = f" ({', '.join(sorted(marks))})" if marks and n >= FEWEST and most > 1 else ""
        yield f"{stacked.partition(',')[0]}: {'; '.join(told)}{shown}."


def _fitted(steps: Errors, stacks: Errors) -> Iterator[str]:
    """The exponent in words, or that none fits; nothing if fewer than two T have a worth."""
    if (fit := exponent(steps, stacks)) is None:
        return
    phi, p = fit
    most = f"{math.log(max(stacks), max(steps)):.2g}"
    if math.isinf(phi.value):
        yield f"worth = T^phi fits for no phi from 0 to {most}"
    elif p >= 0.05:
        yield f"worth = T^phi with phi = {phi.shown('0', most)}"
    else:
        yield f"worth = T^phi does not fit (Hotelling's test, {'p < 0.001' if p < 1e-3 else f'p = {p:.2g}'})"


def _between(stacks: Errors, octaves: Array) -> Array:
    """log RMSE of each function, (S, G), between the stacks at these log2 n (G,)."""
    sizes = sorted(stacks)
    curves = np.log([stacks[n] for n in sizes]).T  # (S, number of stacks)
    return np.stack([np.interp(octaves, np.log2(sizes), curve) for curve in curves])


def _crossing(tried: Array, gaps: Array) -> Crossing:
    """Where the mean of gaps (S, G) over functions first reaches 0, with the t interval."""
    from scipy import stats

    mean, n = gaps.mean(0), len(gaps)
    half = float(stats.t.ppf(0.975, n - 1)) * gaps.std(0, ddof=1) / math.sqrt(n)

    def first(values: Array) -> float:
        if values[0] > 0:
            return -math.inf
        return math.inf if values.max() < 0 else float(tried[int(np.argmax(values >= 0))])

    return Crossing(first(mean), first(mean + half), first(mean - half))
