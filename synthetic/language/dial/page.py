"""The page of the study: sentences and a picture first, the tables behind them."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

from cemverify.results.envelope import Cell, Table, write_text
from cemverify.results.numbers import NOTHING, shown_ratio
from cemverify.results.tables import markdown
from reports.pictures.charts import Curve, Panel, side_by_side
from synthetic import stopping
from synthetic.language.dial.plan import TEST_DEPTHS, DialPlan, own
from synthetic.language.dial.summary import DialSummary
from synthetic.language.tuned import tables
from synthetic.language.tuned.designs import LAYERS, cost, doubling, parameters
from synthetic.language.tuned.page import WIDTH
from synthetic.language.tuned.plan import JUDGING_WINDOWS
from synthetic.language.tuned.study import State
from synthetic.stopping import STOPS

_DESIGN = """\
## How it was measured

- **A model for each T** takes T steps of 1/T in training. **T drawn**: for each batch T is drawn from 1 to {most}.
  Steps that sum to 1 have size 1/T; steps of 1/4 go farther, the more of them there are.
- All models see the same {tokens:,} tokens ({steps:,} steps of {batch} x {context}) of
  {corpus}.
- Each has its own learning rate, tuned on other seeds and another half of the validation part; a model for all T is
  tuned by its mean over T = {depths}.
- Every model is scored with each T' on {judging} windows of the judging half. With T' other than its T, a model for
  one T takes T' steps of the size that it was trained with.
- **Stopping by energy** needs no other training: of at most {last} steps, a token takes no further one in a layer
  once a step lowers the layer's energy by less than a share q of what the token's first step there did.
- **Bits above the source** are a model's bits minus those of the source, the chain that the text is drawn from, which
  no predictor can go below. They are computed on the same windows. Those of other text are not known, and nothing is
  subtracted there."""


def test_time(plan: DialPlan, found: State, summary: DialSummary, unit: str, floor: float | None) -> Table:
    """Bits of every row with each number of steps at test time."""
    off = floor or 0.0
    rows: list[list[Cell]] = []
    for tuned in found.rows:
        bits = summary.bits.get(tuned.row.name, (None,) * len(TEST_DEPTHS))
        seeds = sum(record is not None for record in tuned.judged.values())
        shown = [NOTHING if b is None else _shown(b - off) for b in bits]
        flops = cost(tuned.row.design, plan.recipe.context).training / 1e6
        rows.append([tuned.row.name, tuned.row.why, seeds, f"{flops:,.3f}", *shown])
    above = f"bits/{unit}" if floor is None else f"bits/{unit} above the source's {floor:.4f}"
    columns = ("row", "what", "seeds", "training MFLOPs/token", *(f"T' = {T}" for T in TEST_DEPTHS))
    return Table(f"{above}, with T' steps at test time, mean over seeds", columns, rows)


def stopped(summary: DialSummary, unit: str, floor: float | None) -> Table:
    """Bits and steps of every row whose tokens stop by themselves, beside all steps and the best number of them."""
    off, last = floor or 0.0, TEST_DEPTHS[-1]
    rows: list[list[Cell]] = []
    for name, stops in summary.stopped.items():
        best = _best(summary.bits[name])
        everything = summary.bits[name][-1]
        rows.append(
            [
                name,
                NOTHING if everything is None else _shown(everything - off),
                NOTHING if best is None else f"{_shown(best[1] - off)} (T' = {best[0]})",
                *(NOTHING if s.figure is None else f"{_shown(s.figure - off)} ({s.steps:.1f})" for s in stops),
            ]
        )
    columns = ("row", f"all {last} steps", "the best T' of those tried", *(f"q = {stopping.share(q)}" for q in STOPS))
    above = f"bits/{unit}" if floor is None else f"bits/{unit} above the source's {floor:.4f}"
    return Table(f"{above}, stopped by energy after at most {last} steps (steps a token took), means", columns, rows)


def _best(bits: Sequence[float | None]) -> tuple[int, float] | None:
    """The T' with the fewest bits, and those."""
    known = [(b, T) for T, b in zip(TEST_DEPTHS, bits, strict=True) if b is not None]
    return (min(known)[1], min(known)[0]) if known else None


def _shown(above: float) -> str:
    return f"{above:.4f}" if above < 100 else f"{above:.1e}"


def against(summary: DialSummary) -> Table:
    """One model for all T against the models for each."""
    rows: list[list[Cell]] = [
        [
            a.model,
            a.steps,
            len(a.values),
            shown_ratio(a.comparison),
            ", ".join(f"{mine / theirs:.4f}" for mine, theirs in zip(a.values, a.references, strict=True)),
            a.comparison.conclusion,
        ]
        for a in summary.against
    ]
    columns = ("model", "T", "seeds", "ratio [95 %]", "each seed", "verdict")
    return Table("Bits of one model for all T over those of the model for T, paired by seed", columns, rows)


def picture(found: State, summary: DialSummary, unit: str, floor: float | None) -> str:
    """Bits over T': the models for each T at their own, and the dials at all."""
    off = floor or 0.0
    apart = [(T, summary.bits[own(T)][i]) for i, T in enumerate(TEST_DEPTHS) if own(T) in summary.bits]
    known = [(T, b - off) for T, b in apart if b is not None]
    curves = [Curve("a model for each T", *zip(*known, strict=True))] if known else []
    most = 4 * max((b for _, b in known), default=math.inf)  # what explodes would leave nothing else to be seen
    for tuned in found.rows:
        bits = summary.bits.get(tuned.row.name)
        if bits is not None and tuned.row.design.dial:
            seen = [(T, b - off) for T, b in zip(TEST_DEPTHS, bits, strict=True) if b is not None and b - off < most]
            if seen:
                curves.append(Curve(tuned.row.name, *zip(*seen, strict=True)))
    label = f"bits/{unit}" if floor is None else f"bits/{unit} above the source"
    return side_by_side([Panel("depth as a dial", "T' at test time", label, curves, ticks=(1, 2, 4, 8, 16))])


def sentences(summary: DialSummary, unit: str, floor: float | None) -> Iterator[str]:
    """What is known now."""
    off, what = floor or 0.0, f"bits/{unit}" if floor is None else f"bits/{unit} above the source"
    apart = [
        f"{bits[TEST_DEPTHS.index(T)] - off:.4f} (T = {T})"  # type: ignore[operator]
        for T in TEST_DEPTHS
        if (bits := summary.bits.get(own(T))) is not None and bits[TEST_DEPTHS.index(T)] is not None
    ]
    if apart:
        yield f"Models that are trained for one T need {', '.join(apart)} {what}."
    for name in summary.falls:
        bits = summary.bits[name]
        told = [(T, b - off) for T, b in zip(TEST_DEPTHS, bits, strict=True) if b is not None]
        fewest = _best(bits)
        if fewest is None:
            continue
        best, least = fewest[0], fewest[1] - off
        first, last = told[0], told[-1]
        yield (
            f"One model for all T (*{name}*) needs {first[1]:.4f} with one step, {least:.4f} with {best}, its best"
            f" number, and {last[1]:.4f} with {last[0]}."
        )
    ended = [
        f"*{name}* {found[0] - off:.4f} ({found[1].steps:.1f} steps)"
        for name in summary.falls
        if (found := stopping.best(summary.stopped.get(name, ()))) is not None
    ]
    if ended:
        yield (
            f"Where tokens stop by energy, after at most {TEST_DEPTHS[-1]} steps and at the best of"
            f" {len(stopping.STOPS)} shares, the bits are {' and '.join(ended)}."
        )
    if summary.saved is not None:
        yield (
            f"Together, the models for one T took {summary.saved:.2g} times as many training FLOPs as one model for"
            " all T."
        )
    compared = {name: [a.comparison.conclusion for a in summary.against if a.model == name] for name in summary.falls}
    worse = [f"*{name}* is worse at {v.count('worse') or 'none'} of {len(v)} T" for name, v in compared.items() if v]
    if worse:
        yield f"Against the model that was trained for the same T, {' and '.join(worse)}."


def all_tables(plan: DialPlan, found: State, summary: DialSummary, unit: str, floor: float | None) -> Sequence[Table]:
    """In the order of the page."""
    return [
        test_time(plan, found, summary, unit, floor),
        stopped(summary, unit, floor),
        against(summary),
        tables.tuning(found, unit),
    ]


def write_page(
    path: Path,
    command: str,
    plan: DialPlan,
    corpus: str,
    unit: str,
    floor: float | None,
    found: State,
    summary: DialSummary,
) -> list[Path]:
    """Writes the page and its picture beside it; returns what was written.

    Raises:
        ResultError: a file cannot be written.
    """
    scale = max(parameters(row.design) for row in plan.rows)
    parts = [
        f"# Depth as a dial: {LAYERS[plan.replaced]}, size {plan.size}",
        textwrap.fill(
            " ".join([*sentences(summary, unit, floor), f"The models have {scale:,} parameters."]),
            WIDTH,
            break_on_hyphens=False,
        ),
    ]
    files: dict[Path, str] = {}
    if summary.bits:
        drawn = path.with_name(f"{path.stem}-test-time.svg")
        files[drawn] = picture(found, summary, unit, floor)
        parts.append(f"![Bits over the number of steps at test time]({drawn.name})")
    parts += [
        _DESIGN.format(
            most=plan.depth,
            tokens=plan.recipe.tokens,
            steps=plan.recipe.steps,
            batch=plan.recipe.batch,
            context=plan.recipe.context,
            corpus=corpus,
            depths=", ".join(map(str, doubling(plan.depth))),
            judging=JUDGING_WINDOWS,
            last=TEST_DEPTHS[-1],
        ),
        markdown(list(all_tables(plan, found, summary, unit, floor))),
        f"Generated by `{command}`; on a CPU, the same command generates the same page from the same cells.",
    ]
    for file, text in {**files, path: "\n\n".join(parts) + "\n"}.items():
        write_text(file, text)
    return [*files, path]
