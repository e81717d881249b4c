"""The page of a recursion study: what was asked, what was found, and what that says of the paper's statements."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from cemverify.results.envelope import Table
from cemverify.results.numbers import shown_ratio
from cemverify.results.statistics import FEWEST, MARGIN, Ratio
from synthetic.figures.sheets import plain
from synthetic.studies.engine.pages import COMMAND, Curves, Page, Picture, paragraph
from synthetic.studies.engine.statements import Statement, shown_statements
from synthetic.studies.recursion import pictures
from synthetic.studies.recursion.rows import (
    Row,
    at_depths,
    at_stops,
    best_depth,
    by_depth,
    errors,
    is_drawn,
    priors,
    short,
)
from synthetic.studies.recursion.tables import sheets, verdict

_HOW_TO_COMPARE = (
    "A ratio compares the errors of two models; *worse* says that the first has the larger one. The non-stationary "
    "process is ours and not the paper's, so that a contrary result there is undecided."
)
_HOW_TO_READ = """\
Recursive CEM MLPs learn functions drawn from Gaussian processes. Everything but the model is shared: the functions,
their points and noise, the batches, and the initial values of every parameter that two models have in common.

- **Models.** *CEM* takes T steps of size 1. *Steps sum to 1*: steps of size 1/T. *D = inputs*: no lift, the state has
  as many dimensions as the input. *Norm inside*: RMSNorm before each step. *Printed low-rank P*: as the paper prints
  it, which need not be positive definite. *MLP, FLOPs of CEM*: an untied MLP so wide that it costs as much. *MLP
  reused*: an untied MLP applied T times. *A/A*: CEM once more, with other first weights and batches. *T drawn*: one
  model, with T drawn for each batch. **T'** is the number of steps at test time.
- **RMSE** is `sqrt(mean((m - mu)^2 + v))`, the expected error of predictions `m` given the data, with the exact
  posterior mean `mu` and variance `v`. No predictor has a smaller root of the mean
  squared error over functions than the last row, the **floor**; on a single function its RMSE may be smaller.
  *Observed* RMSE is measured on the noise-free function that was drawn. **Excess** is `sqrt(mean((m - mu)^2))`; it is
  0 at best. **Gap closed** is the share of the gap between ridge regression and the floor that the model closes.
- Every contender is trained at each learning rate of the study. Points held out of its training set select the
  learning rate and the training step whose weights are used. "(edge)" means that the best learning rate was the
  smallest or the largest one tried, "(only rate)" that no other was.
- **Ratio** is the geometric mean, over functions, of a model's RMSE divided by that of its family's smallest T (or by
  that of plain CEM if the family has one member), with a 95 % interval of Student's t on the logarithms. The **p**
  values are two-sided: the t test, corrected by Holm's method for all rows of a table, and sign flips. **Detectable**
  is the relative difference that such a test finds in 80 % of studies.
- **Verdict**: better or worse if the corrected p is below 0.05; equivalent if the 90 % interval lies within
  {margin:.0%}; otherwise inconclusive. Fewer than {fewest} functions are too few: all of them favour one model by
  chance with a probability above 5 %. A run that diverged is counted, and its row shows no mean.
- **Intervals** of mean errors are those of the logarithm of the mean, from Student's t.
- FLOPs are those of one prediction, counted as the operations run."""

_NOT_SAID = """\
## What this does not say

- The paper gives neither the kernel parameters nor the sizes, the optimiser or the number of points of its synthetic
  study. This is a study of the same question, not a replication of the paper's figures.
- There is one recipe, tuned in its learning rate only, at one size of model and of training set. With fewer training
  points, deeper recursion fits the noise sooner, and a smaller T is best.
- The intervals cover other functions from the same prior, each with its own initial weights. They do not cover other
  priors, widths or recipes.
- "Undecided" means that this number of functions is too small to tell, not that there is no difference."""


def page_of(content: Mapping[str, Any]) -> Page:
    """The page of a result.

    Args:
        content: a result with the rows of the study, as its result file has them.
    """
    dial = pictures.dial(content)
    drawn = [
        *([Picture("dial", "One model for all depths against a model for each", Curves(dial))] if dial else []),
        Picture("ratios", "What more steps do", Curves(pictures.ratios(content))),
        Picture("costs", "What they cost", Curves(pictures.costs(content))),
        Picture(
            *("test-time", "Plain CEM with another number of steps at test time"), Curves(pictures.test_time(content))
        ),
    ]
    blocks: tuple[str | Picture | Table, ...] = (
        "## What it shows",
        paragraph(sentences(content)),
        drawn[0],
        shown_statements([Statement(**read) for read in content["statements"]]),
        _HOW_TO_COMPARE,
        "## How to read it",
        f"Generated by `{COMMAND}`; the same command generates the same page.",
        _HOW_TO_READ.format(fewest=FEWEST, margin=MARGIN),
        *drawn[1:],
        *(plain(sheet) for sheet in sheets(content)),
        _NOT_SAID,
    )
    return Page(_title(content), blocks)


def _title(content: Mapping[str, Any]) -> str:
    if pictures.dial(content):
        return "One model for all depths, on functions"
    if any(by_depth(rows, "CEM, norm inside, steps sum to 1") for rows in priors(content).values()):
        return "Recursion depth at three step sizes, with a norm inside and without"
    return "Recursion depth on functions of known difficulty"


# --- what it shows, in a few sentences -------------------------------------------------------------

_LAST = 16
# A family, and what is said of its T = 2 over its T = 1.
_FAMILIES = (
    ("CEM", "The error of plain CEM with T = 2, divided by that with T = 1, is"),
    ("CEM, norm inside", "With a norm inside, as in language models, it is"),
    (
        "MLP reused",
        "For an untied MLP applied twice rather than once, which has no energy and no fixed memory, it is",
    ),
)


def sentences(content: Mapping[str, Any]) -> Iterator[str]:
    """The sentences, each from the rows that it is about; none about rows that are not there."""
    studied = priors(content)
    for family, words in _FAMILIES:
        ratios = [
            f"{shown_ratio(Ratio(**row['deeper']['ratio']), 3)} on {short(prior)}{_open(row['deeper'])}"
            for prior, rows in studied.items()
            for row in rows
            if row["name"] == f"{family}, T = 2" and row["deeper"] is not None
        ]
        if ratios:
            yield f"{words} {'; '.join(ratios)}."
    best = [(short(prior), best_depth(at)) for prior, rows in studied.items() if len(at := by_depth(rows)) > 1]
    if best:
        yield f"The smallest error of plain CEM is at {', '.join(f'T = {T} ({name})' for name, T in best)}."
    yield from _summed(studied)
    for prior, rows in studied.items():
        yield from _dial(short(prior), rows)
    tried = [row for rows in studied.values() for row in rows if row["contender"] is not None]
    edges = sum(row["at_edge"] for row in tried)
    if len(content["made_by"]["configuration"]["rates"]) == 1:
        yield "One learning rate was tried, so part of a difference between depths may be one of tuning."
    if edges == len(tried) and edges:
        yield (
            "Every best learning rate is the smallest or the largest that was tried, so part of a difference between"
            " depths may be one of tuning."
        )
    elif edges:
        yield (
            f"{edges} of {len(tried)} rows have their best learning rate at the edge of those tried: there, part of a"
            " difference between depths may be one of tuning."
        )


def _open(comparison: Mapping[str, Any]) -> str:
    told = verdict(comparison)
    return "" if told in ("better", "worse", "equivalent") else f", {told}"


def _summed(studied: Mapping[str, Sequence[Row]]) -> Iterator[str]:
    """Steps that sum to 1 against steps of 1, each at its best depth."""
    places = []
    for prior, rows in studied.items():
        plain, summed = by_depth(rows), by_depth(rows, "CEM, steps sum to 1")
        if len(summed) > 1 and plain and not any(map(is_drawn, rows)):
            T, other = best_depth(summed), best_depth(plain)
            pairs = zip(errors(summed[T]), errors(plain[other]), strict=True)
            ratio = math.exp(math.fsum(math.log(a / b) for a, b in pairs) / len(errors(plain[other])))
            places.append(f"T = {T} ({short(prior)}), {ratio:.3f} times as large")
    if places:
        yield f"With steps that sum to 1, it is at {', and at '.join(places)}."


def _dial(name: str, rows: Sequence[Row]) -> Iterator[str]:
    """One model for all depths against models for each, with the most steps that were tried, and with a stop."""
    drawn = sorted(((row, at_depths(row)) for row in rows if is_drawn(row)), key=lambda pair: _last(pair[1]))
    if not drawn:
        return
    each = {T: at_depths(row) for T, row in by_depth(rows).items()}
    own = ", ".join(f"{at.get(T, math.inf):.3f} (T = {T})" for T, at in each.items())
    far = ", ".join(f"{_last(at):.2g}" for at in each.values())
    yield f"On {name}, models trained for one T have an error of {own}; with {_LAST} steps, of {far}."
    (first, at), *rest = drawn
    lowest = min(at, key=lambda T: at[T])
    yield (
        f"Of the models for all T, the one that is best with {_LAST} steps (*{first['contender']['family']}*) has"
        f" {at[1]:.3f} with one step, {at[lowest]:.3f} with {lowest}, its best number, and"
        f" {_last(at):.3f} with {_LAST}."
    )
    if rest:
        least, last = [min(at.values()) for _, at in rest], [_last(at) for _, at in rest]
        yield f"The others have {_span(least)} with their best number of steps, and {_span(last)} with {_LAST}."
    ended = [
        (min(finite), at_depths(row)) for row in rows if (finite := [e for _, _, e in at_stops(row) if e is not None])
    ]
    if ended:
        fewer = sum(error < _last(at) for error, at in ended)
        best = sum(error <= min(at.values()) for error, at in ended)
        count = max(len(at_stops(row)) for row in rows)
        yield (
            f"Where points stop by energy, at the best of {count} shares, {fewer} of {len(ended)} models"
            f" have a smaller error than with all {_LAST} steps, and {best or 'none'} one as small as with its best"
            " number of steps."
        )


def _last(at: Mapping[int, float]) -> float:
    return at.get(_LAST, math.inf)


def _span(values: Sequence[float]) -> str:
    low, high = f"{min(values):.3f}", f"{max(values):.3f}"
    return low if low == high else f"{low} to {high}"
