"""The page of the study: five sentences and a picture first, the tables behind them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from pathlib import Path

from cemverify.results.envelope import write_text
from cemverify.results.numbers import shown_ratio
from cemverify.results.tables import markdown
from synthetic.language.paper.summary import MARGIN
from synthetic.language.tuned import designs, pictures, tables
from synthetic.language.tuned.designs import LAYERS, WIDER, parameters
from synthetic.language.tuned.plan import JUDGING_WINDOWS, TUNING_WINDOWS, SecondStepPlan
from synthetic.language.tuned.power import seeds_to_equal, seeds_to_find
from synthetic.language.tuned.study import State
from synthetic.language.tuned.summary import Summary

WIDTH = 118  # of running text
_DESIGN = """\
## How it was measured

- **Recipe.** Embeddings are N(0, 1) and have no weight decay; all layers are N(0, 1/D). It is the same in all rows.
  All see {tokens:,} tokens ({steps:,} steps of {batch} x {context}), {per:.3g} for each parameter of Llama, on
  {corpus}.
- **Tuning.** Each row by itself: at least four learning rates, doubling, in trainings of {short:.3g} of the length;
  the best and its neighbours at {long:.3g}. At both, more rates are tried until the best has a worse one on each
  side. The rate is the lowest point of the parabola through those three. It is found with {tuning_seeds} seed(s) that
  judge nothing, on {tuning} windows of the first half of the validation part.
- **Judging.** Full length, fresh seeds, {judging} windows of the second half. Rows are paired by seed: the same
  batches, and the same first value of every parameter that two models share.
- **Verdict of a comparison.** Equivalent if the 90 % interval lies within {margin:.1%}; better or worse if the
  interval excludes 1 (from six seeds on, if the p-value corrected by Holm's method is below 0.05, the
  paper's rows and those beyond it each for themselves); otherwise inconclusive.
  **Detectable** is what a paired t test on as many seeds finds in 80 % of studies. **Error from the text** is the
  part of the standard error that comes from which windows are scored; more seeds do not make it smaller.
- **The second step pays** if T = {depth} is better than T = 1 *and* than T = 1 with a step {depth} times as long. It
  does not if it is equivalent to one of them or worse. Otherwise this study has not decided.
- **How the steps lie.** The *stream* is the state x that the steps are added to, x_t the state before step t, h the
  state at the start, from which the memory N(h) is made, and N the norm. Where the first step is longer than the
  stream, the second starts far from the state that the memory was made from. Where the cosine of two steps is near
  1, the second repeats the first."""

_PICTURE = """\
A large dot is the mean over seeds and its bar the 95 % interval, not corrected for several comparisons; a small dot
is one seed. Green intervals lie below 1, orange ones above, and blue ones include 1. The grey band is a difference of
at most {margin:.1%}."""


def write_page(
    path: Path, command: str, plan: SecondStepPlan, corpus: str, unit: str, found: State, summary: Summary
) -> list[Path]:
    """Writes the page and its pictures beside it; returns what was written.

    Raises:
        ResultError: a file cannot be written.
    """
    drawn: dict[str, tuple[str, str]] = {}
    if any(pair.seeds for pair in summary.pairs):
        drawn["ratios"] = ("Every row over T = 1", pictures.ratios(plan, summary))
    if any(tuned.curves for tuned in found.rows):
        drawn["rates"] = ("Tuning", pictures.rates(found, unit))
    how = pictures.steps(found, designs.several(plan.depth))
    if how is not None:
        drawn["steps"] = (f"How the steps of {designs.several(plan.depth)} lie", how)
    files = {path.with_name(f"{path.stem}-{name}.svg"): text for name, (_, text) in drawn.items()}

    def shown(name: str) -> list[str]:
        return [f"![{drawn[name][0]}]({path.stem}-{name}.svg)"] if name in drawn else []

    shares = plan.shares
    scale = f"{plan.size}, {plan.per_parameter:.3g} tokens a parameter"
    parts = [
        f"# Does a second step pay{_against(plan)}? {LAYERS[plan.replaced]}, {scale}",
        textwrap.fill(" ".join(sentences(plan, summary)), WIDTH, break_on_hyphens=False),
        *shown("ratios"),
        *([_PICTURE.format(margin=MARGIN)] if "ratios" in drawn else []),
        _DESIGN.format(
            tokens=plan.recipe.tokens,
            steps=plan.recipe.steps,
            batch=plan.recipe.batch,
            context=plan.recipe.context,
            per=plan.per_parameter,
            corpus=corpus,
            short=shares[0],
            long=shares[1],
            tuning_seeds=plan.tuning_seeds,
            tuning=TUNING_WINDOWS,
            judging=JUDGING_WINDOWS,
            margin=MARGIN,
            depth=plan.depth,
        ),
        markdown(
            [
                *tables.beyond(plan, summary),
                tables.pairs(summary),
                tables.models(plan, found, summary, unit),
                tables.tuning(found, unit),
                tables.need(plan, summary),
                tables.steps(found),
            ]
        ),
        *shown("steps"),
        *shown("rates"),
        f"Generated by `{command}`; on a CPU, the same command generates the same page from the same cells.",
    ]
    for file, text in {**files, path: "\n\n".join(parts) + "\n"}.items():
        write_text(file, text)
    return [*files, path]


def _against(plan: SecondStepPlan) -> str:
    """What a title adds where the study also asks what else the FLOPs of the second step buy."""
    return " against a wider layer" if plan.row(WIDER) is not None else ""


def sentences(plan: SecondStepPlan, summary: Summary) -> Iterator[str]:
    """What is known now, in five sentences."""
    deep, one, longer = designs.several(plan.depth), designs.one(), designs.one(plan.depth)
    what = LAYERS[plan.replaced]
    count = max((len(pair.seeds) for pair in summary.pairs), default=0)
    answers = {
        "pays": f"**A second step pays in {what} at this size.**",
        "does not pay": f"**A second step does not pay in {what} at this size.**",
        "undecided": f"**Whether a second step pays in {what} at this size is undecided.**",
    }
    yield f"{answers[summary.verdict]} This page rests on {count} seed{'' if count == 1 else 's'}: {summary.why}."
    yield "T is the number of steps inside a layer and eta their size; a ratio below 1 means fewer bits."
    if not count:
        yield "What is there is the tuning: bits at each learning rate, with seeds that judge nothing."
        return
    told = [
        f"{shown_ratio(pair.comparison)} times the bits of *{base}*"
        for base in (one, longer, designs.WIDER, designs.TWICE)
        if (pair := summary.pair(deep, base)) is not None and pair.comparison is not None
    ]
    if told:
        yield f"*{deep}* needs {_and(told)}."
    control = summary.pair(longer, one)
    if control is not None and control.comparison is not None:
        ratio = shown_ratio(control.comparison)
        yield f"The longer update alone, *{longer}*, needs {ratio} times the bits of *{one}*."
    again = summary.pair(designs.AGAIN, one)
    if again is not None and again.comparison is not None:
        yield (
            f"A control, *{one}* once more with other first weights, has a ratio of {shown_ratio(again.comparison)}:"
            f" {again.verdict}."
        )
    if summary.deviation:
        find, equal = seeds_to_find(MARGIN, summary.deviation), seeds_to_equal(MARGIN, summary.deviation)
        yield (
            f"The ratio of *{deep}* to *{one}* varies from seed to seed with a standard deviation of"
            f" {summary.deviation:.2%}: four times in five, {find or 'over 1,000'} seeds find a difference of"
            f" {MARGIN:.1%}, and {equal or 'over 1,000'} rule it out."
        )
    else:
        yield f"With fewer than three seeds nothing can be said about differences of {MARGIN:.1%}."
    if summary.beyond:
        yield _beyond(summary)
    scale = max(parameters(row.design) for row in plan.rows)
    yield f"The largest model has {scale:,} parameters."


def _beyond(summary: Summary) -> str:
    """What came of the rows that are beyond the paper."""
    told = []
    for word in ("pays", "does not pay", "undecided"):
        rows = [f"*{answer.row}*" for answer in summary.beyond if answer.verdict == word]
        if rows:
            told.append(f"{'is undecided' if word == 'undecided' else word} in {_and(rows)}")
    return f"Beyond the paper, by the same rule, a second step {'; '.join(told)}."


def _and(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} and {parts[-1]}"
