"""What the study says: whether the second step pays, and all that this rests on."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import shown_ratio
from synthetic.figures.charts import Curve, DotRow, Panel
from synthetic.studies.engine import tables
from synthetic.studies.engine.comparisons import MARGIN, Compared, family, pair_of
from synthetic.studies.engine.designs import LAYERS, cost, more_parameters, parameters
from synthetic.studies.engine.pages import (
    GENERATED,
    Curves,
    Dots,
    Page,
    Picture,
    about_dots,
    joined,
    paragraph,
    ratio_dots,
)
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.power import seeds_to_equal, seeds_to_find
from synthetic.studies.engine.rates import rate
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.engine.tuning import StudyState
from synthetic.studies.second_step.rows import AGAIN, LLAMA, TWICE, WIDER, one, several
from synthetic.training.steps import Steps

Verdict = Literal["pays", "does not pay", "undecided"]
# the words of a page: the comparison is at equal tokens, and "pays" would be a word about the price
WORDS: dict[str, str] = {"pays": "helps", "does not pay": "does not help", "undecided": "undecided"}


# --- whether it pays ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """Whether the second step of one row pays."""

    row: str  # its name
    verdict: Verdict  # by the rule of the study, with the row in the place of T = depth
    why: str  # in a sentence


@dataclass(frozen=True)
class StepSummary:
    """The study in short."""

    pairs: tuple[Compared, ...]  # all comparisons
    verdict: Verdict  # whether the second step pays
    why: str  # in a sentence
    deviation: float | None  # of the log ratios of T = depth over T = 1, where at least three seeds tell it
    beyond: tuple[Answer, ...] = ()  # whether the second step pays in each row that is beyond the paper

    def pair(self, model: str, base: str) -> Compared | None:
        """The comparison of two rows, if it has a seed."""
        return pair_of(self.pairs, model, base)


def summarise(plan: Plan, state: StudyState) -> StepSummary:
    """Compares every row with T = 1, and the recursion with each of its controls."""
    first, longer, deep = one(), one(plan.depth), several(plan.depth)
    names = [row.name for row in plan.rows]
    compared = [(name, first) for name in names if name != first]
    compared += [(deep, base) for base in (longer, WIDER, TWICE, LLAMA)]
    compared += [(name, longer) for name in (f"T = {plan.depth}, eta 1", f"T = {plan.depth}, eta learned")]
    further = [row for row in plan.rows if row.beyond and not row.name.startswith(f"{first},")]
    compared += [(row.name, base) for row in further for base in (longer, deep, WIDER, TWICE)]
    compared += [(row.name, row.name.replace(f"T = {plan.depth}", first)) for row in further]
    pairs = state.compared(compared)
    beyond = {row.name for row in plan.rows if row.beyond}
    # two families: what is said of the paper's rows does not depend on how many others were tried
    pairs = family([p for p in pairs if p.model not in beyond]) + family([p for p in pairs if p.model in beyond])
    by_name = {(pair.model, pair.base): pair for pair in pairs}

    def decided(row: str) -> tuple[Verdict, str]:
        return _verdict(row, [by_name.get((row, base)) for base in (first, longer)])

    main = by_name.get((deep, first))
    answers = [Answer(row.name, *decided(row.name)) for row in further]
    return StepSummary(tuple(pairs), *decided(deep), None if main is None else main.deviation, tuple(answers))


def _verdict(deep: str, pairs: Sequence[Compared | None]) -> tuple[Verdict, str]:
    """It pays if it is better than every T = 1, and does not if it is equivalent to one or worse."""
    there = [pair for pair in pairs if pair is not None]
    if len(there) < len(pairs):
        return "undecided", "the rows that decide it are not in this study"
    if any(pair.comparison is None for pair in there):
        return "undecided", "no seed has judged them all yet"
    verdicts = [pair.verdict for pair in there]
    against = [f"*{pair.base}*" for pair in there]
    if all(verdict == "better" for verdict in verdicts):
        return "pays", f"*{deep}* is better than {' and than '.join(against)}"
    for pair, verdict in zip(there, verdicts, strict=True):
        if verdict in ("worse", "equivalent"):
            word = "worse than" if verdict == "worse" else f"equivalent to (within {MARGIN:.1%})"
            return "does not pay", f"*{deep}* is {word} *{pair.base}*"
    open_ones = [f"*{p.base}*" for p, verdict in zip(there, verdicts, strict=True) if verdict != "better"]
    return "undecided", f"*{deep}* cannot be told apart from {' or '.join(open_ones)}"


# --- the page ----------------------------------------------------------------------------------------

_DESIGN = """\
## How it was measured

- **Layers.** {layers}. P is {P} and positions are {positions}. In studies of other layers both may differ, so that
  what differs between two studies need not come from the layers.
- **Recipe.** Embeddings are N(0, 1) and have no weight decay; all layers are N(0, 1/D). It is the same in all rows.
  All see {tokens:,} tokens ({steps:,} steps of {batch} x {context}), {per:.3g} for each parameter of Llama, on
  {corpus}.
- **Tuning.** Each row by itself: at least four learning rates, doubling, in trainings of {short:.3g} of the length;
  the best and its neighbours at {long:.3g}. At both, more rates are tried until the best has a worse one on each
  side. The rate is the lowest point of the parabola through those three, rounded to a quarter of an octave;
  whether it is the best at the full length is not checked. It is found with {tuning_seeds} seed(s) that
  judge nothing, on {tuning} windows of the first half of the validation part.
- **Judging.** Full length, fresh seeds, {judging} windows of the second half. Rows are paired by seed: the same
  batches, and the same first value of every parameter that two models share.
- **Verdict of a comparison.** Equivalent if the 90 % interval lies within {margin:.1%}; better or worse if the
  p-value, corrected by Holm's method, is below 0.05 (the paper's rows and those beyond it each for themselves);
  otherwise inconclusive. Fewer than six seeds are too few: all of them favour one model by chance with a probability
  above 5 %.
  **Detectable** is what a paired t test on as many seeds finds in 80 % of studies. **Error from the text** is the
  part of the standard error that comes from which windows are scored; more seeds do not make it smaller.
- **The second step helps** if T = {depth} is better than T = 1 *and* than T = 1 with a step {depth} times as long, at
  equal tokens and so at more FLOPs. It does not if it is equivalent to one of them or worse. Otherwise this study
  has not decided. The steps of T = {depth} have the size 1/{depth}: together they are as long as the one of T = 1.
- **How the steps lie.** The *stream* is the state x that the steps are added to, x_t the state before step t, h the
  state at the start, from which the memory N(h) is made, and N the norm. Where the first step is longer than the
  stream, the second starts far from the state that the memory was made from. Where the cosine of two steps is near
  1, the second repeats the first."""


def read(study: StudyOutcome) -> Findings:
    """What the study says, as far as it is."""
    plan, state, unit = study.plan, study.state, study.unit
    summary = summarise(plan, state)
    deep = several(plan.depth)
    measured = f"T = {plan.depth} over T = 1"
    blocks: list[str | Picture | Table] = [paragraph(sentences(plan, summary))]
    if any(pair.seeds for pair in summary.pairs):
        blocks.append(Picture("ratios", "Every row over T = 1", ratios(plan, summary)))
        blocks.append(about_dots("Green intervals lie below 1, orange ones above, and blue ones include 1."))
    blocks += [
        _DESIGN.format(**study.measured),
        *beyond(plan, summary),
        tables.comparisons(state, summary.pairs),
        tables.models(study, summary.pairs, one()),
        tables.tuning(state, unit),
        tables.need(summary.deviation, measured),
        steps(state),
    ]
    if (lying := how_steps_lie(state, deep)) is not None:
        blocks.append(Picture("steps", f"How the steps of {deep} lie", lying))
    if any(tuned.curves for tuned in state.rows):
        blocks.append(Picture("rates", "Tuning", rates(state, unit)))
    blocks.append(GENERATED)
    # what a title adds where the study also asks what else the FLOPs of the second step buy
    against = " against a wider layer" if plan.row(WIDER) is not None else ""
    question = f"Does a second step help{against}?" if _has_second_step(plan) else "Which single step is better?"
    scale = f"{plan.size}, {plan.per_parameter:.3g} tokens a parameter"
    return Findings(
        Page(f"{question} {LAYERS[plan.replaced]}, {scale}", blocks),
        f"the second step: {summary.verdict}; {summary.why}",
        summary.pairs,
        figures={"verdict": {"word": summary.verdict, "why": summary.why}},
        more={"beyond": [asdict(answer) for answer in summary.beyond]},
    )


def sentences(plan: Plan, summary: StepSummary) -> Iterator[str]:
    """What is known now, in five sentences."""
    deep, first, longer = several(plan.depth), one(), one(plan.depth)
    layers = LAYERS[plan.replaced]
    count = max((len(pair.seeds) for pair in summary.pairs), default=0)
    answers = {
        "pays": f"**A second step helps in {layers} at this size and at equal tokens.**",
        "does not pay": f"**A second step does not help in {layers} at this size and at equal tokens.**",
        "undecided": f"**Whether a second step helps in {layers} at this size and at equal tokens is undecided.**",
    }
    seeds = f"{count} seed{'' if count == 1 else 's'}"
    if not _has_second_step(plan):
        of_pairs = [
            f"*{p.model}* needs {shown_ratio(p.comparison)} times the bits of *{p.base}*" for p in summary.pairs
        ]
        yield f"**At equal tokens {joined(of_pairs)}.** This page rests on {seeds}, and no row takes a second step."
        yield "T is the number of steps inside a layer; a ratio below 1 means fewer bits."
        return
    yield f"{answers[summary.verdict]} This page rests on {seeds}: {summary.why}."
    yield "T is the number of steps inside a layer and eta their size; a ratio below 1 means fewer bits."
    yield from _price(plan)
    if not count:
        yield "What is there is the tuning: bits at each learning rate, with seeds that judge nothing."
        return
    ratios_ = [
        f"{shown_ratio(pair.comparison)} times the bits of *{base}*"
        for base in (first, longer, WIDER, TWICE)
        if (pair := summary.pair(deep, base)) is not None
    ]
    if ratios_:
        yield f"*{deep}* needs {joined(ratios_)}."
    if (control := summary.pair(longer, first)) is not None:
        ratio = shown_ratio(control.comparison)
        yield f"The longer update alone, *{longer}*, needs {ratio} times the bits of *{first}*."
    if (again := summary.pair(AGAIN, first)) is not None:
        yield (
            f"A control, *{first}* once more with other first weights, has a ratio of"
            f" {shown_ratio(again.comparison)}: {again.verdict}."
        )
    if summary.deviation:
        find, equal = seeds_to_find(MARGIN, summary.deviation), seeds_to_equal(MARGIN, summary.deviation)
        yield (
            f"The ratio of *{deep}* to *{first}* varies from seed to seed with a standard deviation of"
            f" {summary.deviation:.2%}: four times in five, {find or 'over 1,000'} seeds find a difference of"
            f" {MARGIN:.1%}, and {equal or 'over 1,000'} rule it out."
        )
    else:
        yield f"With fewer than three seeds nothing can be said about differences of {MARGIN:.1%}."
    if summary.beyond:
        yield _beyond(summary)
    scale = max(parameters(row.design) for row in plan.rows)
    yield f"The largest model has {scale:,} parameters."


def _has_second_step(plan: Plan) -> bool:
    return plan.row(several(plan.depth)) is not None


def _price(plan: Plan) -> Iterator[str]:
    """What the second step and the wider layer cost."""
    plain, deep, wider = (plan.row(name) for name in (one(), several(plan.depth), WIDER))
    context = plan.recipe.context
    if plain is not None and deep is not None:
        times = cost(deep.design, context).training / cost(plain.design, context).training
        yield f"*{deep.name}* takes {times:.2f} times the training FLOPs of *{plain.name}*."
    if plain is not None and wider is not None:
        yield more_parameters(wider, plain)


def _beyond(summary: StepSummary) -> str:
    """What came of the rows that are beyond the paper."""
    answers = []
    for word in ("pays", "does not pay", "undecided"):
        rows = [f"*{answer.row}*" for answer in summary.beyond if answer.verdict == word]
        if rows:
            answers.append(f"{'is undecided' if word == 'undecided' else WORDS[word]} in {joined(rows)}")
    return f"Beyond the paper, by the same rule, a second step {'; '.join(answers)}."


# --- tables ------------------------------------------------------------------------------------------


def beyond(plan: Plan, summary: StepSummary) -> list[Table]:
    """Each row beyond the paper against its controls, with its verdict; no table where the study has none."""
    if not summary.beyond:
        return []
    bases = (one(), one(plan.depth), several(plan.depth), WIDER, TWICE)
    rows: list[list[Cell]] = []
    for answer in summary.beyond:
        against = [summary.pair(answer.row, base) for base in bases]
        figures = [shown_ratio(None if pair is None else pair.comparison) for pair in against]
        rows.append([answer.row, *figures, WORDS[answer.verdict]])
    columns = ("row", *(f"over {base}" for base in bases), "a second step")
    return [Table(f"Beyond the paper: the same rule for each row in the place of T = {plan.depth}", columns, rows)]


def steps(state: StudyState) -> Table:
    """How the steps lie in each layer, at the start and after training, of the first judged seed."""
    rows: list[list[Cell]] = [
        [tuned.row.name, *layer.cells(when), " > ".join(f"{energy:.1f}" for energy in layer.energies)]
        for tuned in state.rows
        for record in tuned.records[:1]
        for when, of_layers in (("start", record.start), ("trained", record.end))
        for layer in of_layers
    ]
    columns = (
        *("row", "layer", "when", "rms of the stream", "length of each step / stream", "cosine to the step before"),
        *("cosine of N(x_t), N(h)", "energy, step by step"),
    )
    return Table("How the steps lie, means over tokens", columns, rows)


# --- pictures ----------------------------------------------------------------------------------------


def ratios(plan: Plan, summary: StepSummary) -> Dots:
    """Every row over T = 1, and the recursion over its controls: a dot for each seed, the mean and its interval."""
    first, deep = one(), several(plan.depth)
    over_one = [(pair.model, pair) for pair in summary.pairs if pair.base == first]
    over_controls = [(pair.base, pair) for pair in summary.pairs if pair.model == deep and pair.base != first]
    return ratio_dots([(f"bits over those of {first}", over_one), (f"bits of {deep} over those of", over_controls)])


def rates(state: StudyState, unit: str) -> Curves:
    """Bits over the learning rate at the length that decided it, one curve for each row."""
    curves = []
    for tuned in state.rows:
        if not tuned.curves:
            continue
        finite = {k: bits for k, bits in tuned.curves[-1].bits.items() if math.isfinite(bits)}
        curves.append(Curve(tuned.row.name, [1e4 * rate(k) for k in finite], list(finite.values())))
    ticks = sorted({x for curve in curves for x in curve.x})
    label = "learning rate x 10,000"
    return Curves([Panel("tuning half, before judging", label, f"bits/{unit}", curves, ticks=ticks)])


def how_steps_lie(state: StudyState, name: str) -> Dots | None:
    """How the steps of one row lie, layer by layer, at the start and after training; None without a record."""
    tuned = state.of(name)
    if tuned is None or not tuned.records:
        return None
    record = tuned.records[0]
    quantities: tuple[tuple[str, Callable[[Steps], Sequence[float]]], ...] = (
        ("length of each step over the stream", lambda layer: layer.lengths),
        ("cosine of each step with the one before", lambda layer: layer.turns),
        ("cosine of N(x_t), where a step is asked, with N(h)", lambda layer: layer.nearness[1:]),
    )
    groups = []
    for title, values in quantities:
        lines = [
            DotRow(f"{layer.place}, {when}", values(layer), None, note=", ".join(f"{v:.2f}" for v in values(layer)))
            for when, of_layers in (("start", record.start), ("trained", record.end))
            for layer in of_layers
        ]
        groups.append((title, sorted(lines, key=lambda line: line.label)))
    return Dots(groups)
