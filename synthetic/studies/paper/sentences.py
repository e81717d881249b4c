"""What a language study says: its page, with the paper's statements, pictures and tables, and its readings."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_ratio, shown_spread, shown_verdict
from cemverify.results.statistics import FEWEST, PairedComparison, correct, spread
from synthetic.figures.charts import Curve, Panel
from synthetic.studies.engine.comparisons import MARGIN, Compared, compared
from synthetic.studies.engine.designs import parameters
from synthetic.studies.engine.pages import COMMAND, Curves, Page, Picture
from synthetic.studies.engine.statements import shown_statements
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.paper import statements
from synthetic.studies.paper.rows import ALIBI, EXPERIMENTS, FULL, RATES, ROTARY, WIDENED, Variant, at_rate
from synthetic.studies.paper.statements import EXPECTATIONS
from synthetic.studies.paper.summary import Optimum, Summed, between, summarise, tuned
from synthetic.training.frames import TINY

_HOW_TO_READ = """\
All models are trained on the same batches in the same order, and two models share the initial values of every
parameter that both have. Each seed has batches and initial values of its own.

Corpus: {corpus}.

- **Equal tokens**: validation bits per {unit} after the last step, divided by those of the baseline. The figure is
  the geometric mean of the ratios, paired by seed, with a 95 % interval of Student's t on their logarithms.
- **Equal FLOPs**: the same ratio when every model has spent what the cheapest model of the study spends in total
  (matrix products; causal attention counts as if it were dense), interpolated between two validations. A model that
  is cut short in this way still has a higher learning rate than one that has finished, so this column favours the
  cheaper model.
- **Equal parameters**: the ratio at equal tokens for a twin of the model whose MLP is widened until it has as many
  parameters as the baseline. If the model is already as large, it is compared itself.
- **Verdict**: equivalent if the 90 % interval lies within {margin:.1%}, which is a seventh of the difference that
  Chinchilla's law predicts between the paper's two smallest sizes; better or worse if the p-value, corrected by
  Holm's method, is below 0.05; otherwise inconclusive. Fewer than {fewest} seeds are too few: all of them favour one
  model by chance with a probability above 5 %. A run that diverged is counted, and its row shows no mean.
- **Reading** of a statement, from comparisons at equal tokens only. "Better" and "worse" agree if the 95 % interval
  lies on their side of 1 and the corrected p-value is below 0.05, and disagree if it lies on the other side or the
  models are equivalent. "Close" agrees if they are equivalent, and disagrees if the interval lies beyond the margin.
  If a statement needs several comparisons, one that disagrees is enough to disagree. Everything else is undecided.
- CEM attention has ALiBi positions and is compared with Llama with ALiBi. A CEM MLP stands in a Llama with rotary
  positions and is compared with that Llama. Unless stated otherwise, CEM layers have a diagonal of A_k shared by the
  heads, a diagonal preconditioner, and RMSNorm inside with one gain per channel."""

_NOT_SAID = """\
## What this does not say

- The models have about {parameters:,} parameters and see {tokens:,} tokens{scale}
- There is one recipe and one learning rate for all models, except in the study of learning rates.
- First weights of embeddings are as small as those of layers. The first attention step is then several times as long
  as the stream that it is added to, and a second step is asked far from where the memory was read. That alone costs
  bits, so these figures say nothing about whether a second step can pay; `python -m synthetic language second-step`
  asks that, with a recipe that is fair to it.
- The intervals cover other seeds, that is, other initial weights and batches. They do not cover other text, sizes or
  recipes.
- The paper does not say which preconditioner, diagonal and positions its single replacements use; those above are our
  choice.
- "Undecided" means that this number of seeds is too small to tell, not that there is no difference."""

_TINY_SCALE = """. The
  paper's have 86 to 162 million parameters and see billions of tokens: what fails here may hold there, and the
  reverse."""
_PAPER_SCALE = """, the
  number that Chinchilla's law recommends, of one text, in runs that are not the paper's own."""


def read(study: StudyOutcome, name: str) -> Findings:
    """What the experiment of that name says, once all of its models are trained."""
    plan, unit = study.plan, study.unit
    rows, figure = summarise(plan.recipe.steps, study.state.rows), EXPERIMENTS[name].figure
    read = statements.read(name, rows)
    tables = [comparisons(study, name, rows)]
    picture = Picture("ratios", "Along the way, and what the models cost", ratios(study, rows))
    if name == "learning-rate":
        tables.append(rates(rows, unit))
        picture = Picture("rates", "Bits over the learning rate", learning_rates(rows, unit))
    corpus = f"{study.corpus}, {study.learned_from:,} {unit}s to learn from"
    how_to_read = _HOW_TO_READ.format(corpus=corpus, unit=unit, fewest=FEWEST, margin=MARGIN)
    largest = max(parameters(row.design) for row in plan.rows)
    blocks: list[str | Picture | Table] = [
        f"Generated by `{COMMAND}`; on a CPU, the same command generates the same page.",
        how_to_read,
        "## The paper's statements",
        shown_statements(read),
        picture,
        *tables,
        _NOT_SAID.format(
            parameters=largest, tokens=plan.recipe.tokens, scale=_TINY_SCALE if plan.size == TINY else _PAPER_SCALE
        ),
    ]
    optima = {model: tuned(rows, model) for model in (FULL, ROTARY, ALIBI)} if name == "learning-rate" else {}
    return Findings(
        Page(f"{name.capitalize()} in a language model, {figure}, size {plan.size}", blocks),
        "\n\n".join(f"the paper: {s.text}\n     here: {s.found}\n  reading: {s.reading}" for s in read),
        [*_pairs(study, name), *_tuned_pairs(optima)],
        figures={
            "parameters": largest,
            "recipe": f"{plan.recipe.steps:,} steps on {study.corpus}, AdamW with the settings of Table 2",
            "best_rates": [_best(model, each) for model, each in optima.items() if each],
        },
        more={"statements": [asdict(statement) for statement in read]},
    )


# --- tables ------------------------------------------------------------------------------------------


def comparisons(study: StudyOutcome, name: str, rows: Sequence[Summed]) -> Table:
    """Every model at equal tokens, at equal FLOPs, at equal parameters."""
    plan, recipe, unit = study.plan, study.plan.recipe, study.unit
    title = (
        f"{name} ({EXPERIMENTS[name].figure}) at size {plan.size}: {recipe.steps:,} steps of {recipe.batch} x"
        f" {recipe.context} tokens, bits/{unit} as mean ± std of n = {plan.seeds} seed(s),"
        " ratios to the baseline paired by seed with 95 % interval"
    )
    columns = (
        *("model", "baseline", "parameters", "training MFLOPs/token", f"bits/{unit}", "equal tokens", "verdict"),
        *("equal FLOPs: after", f"bits/{unit} then", "equal FLOPs", "verdict then", "equal parameters", "verdict so"),
    )
    return Table(title, columns, [_row(row) for row in rows])


def rates(rows: Sequence[Summed], unit: str) -> Table:
    """The best learning rate of each model, found seed by seed between those tried."""
    cells: list[list[Cell]] = []
    optima = {name: tuned(rows, name) for name in (ROTARY, ALIBI, FULL, FULL + WIDENED)}
    bits = {name: [o.bits for o in each] for name, each in optima.items()}
    rivals = [name for name in optima if name != ROTARY]
    against = dict(zip(rivals, correct([between(bits[name], bits[ROTARY]) for name in rivals]), strict=True))
    for name, each in optima.items():
        if not each:
            cells.append([name, "too many runs diverged", NOTHING, NOTHING, NOTHING])
            continue
        edges = sum(optimum.at_edge for optimum in each)
        edge = f" (at the edge for {edges} of {len(each)})" if edges else ""
        rate = shown_spread(spread([optimum.rate for optimum in each]), 5)
        cells.append([name, f"{rate}{edge}", shown_spread(spread(bits[name])), *_comparison(against.get(name))])
    columns = ("model", "best rate", f"bits/{unit} there", f"ratio to {ROTARY}", "verdict")
    return Table("Each at its best learning rate, by Akima interpolation over log2 of the rate", columns, cells)


def _row(row: Summed) -> list[Cell]:
    first = row.records[0]
    cells: list[Cell] = [
        row.name,
        row.variant.against or NOTHING,
        f"{first.parameters:,}" + ("" if row.share is None else f" ({row.share:.3f})"),
        f"{first.training / 1e6:,.3f}",
    ]
    if row.diverged:
        return [*cells, f"diverged {row.diverged}/{len(row.records)}", *[NOTHING] * 8]
    return [
        *cells,
        shown_spread(spread(row.finals)),
        *_comparison(row.tokens),
        f"{row.affordable:,.0f} steps",
        shown_spread(spread(row.at_equal_flops)),
        *_comparison(row.flops),
        *_comparison(row.parameters),
    ]


def _comparison(comparison: PairedComparison | None) -> list[Cell]:
    if comparison is None:
        return [NOTHING, NOTHING]
    return [shown_ratio(comparison), shown_verdict(comparison.conclusion, comparison.n)]


# --- pictures ----------------------------------------------------------------------------------------

# The first validations, where everything is far from what it will be, would flatten the rest.
SHOWN_FROM = 4
BASELINE = ("baseline", 1.0)


def ratios(study: StudyOutcome, rows: Sequence[Summed]) -> Curves:
    """For each baseline two panels: ratios of bits along the way, and the last ones against training FLOPs."""
    recipe, unit = study.plan.recipe, study.unit
    panels = []
    for base in rows:
        group = [row for row in rows if row.variant.against == base.name and row.tokens is not None]
        if group:
            along = [_along(recipe.batch * recipe.context, row, base) for row in group]
            by_cost = [_by_cost(row) for row in group]
            spent = sorted(curve.x[0] for curve in by_cost)
            title = f"against {base.name}"
            panels.append(Panel(title, "tokens", f"bits/{unit} over the baseline's", along, BASELINE))
            ends = (spent[0], spent[-1])
            panels.append(Panel("after the last step", "training kFLOPs per token", "", by_cost, BASELINE, ends))
    return Curves(panels or [Panel("too many runs diverged", "tokens", f"bits/{unit}", [])])


def learning_rates(rows: Sequence[Summed], unit: str) -> Curves:
    """Mean bits of each model over the learning rate, and the range over its seeds."""
    named = {row.name: row for row in rows}
    curves = []
    for name in (ROTARY, ALIBI, FULL, FULL + WIDENED):
        sound = [rate for rate in RATES if not named[at_rate(name, rate)].diverged]
        finals = [named[at_rate(name, rate)].finals for rate in sound]
        means = [math.fsum(bits) / len(bits) for bits in finals]
        rates = [1e4 * rate for rate in sound]
        curves.append(Curve(name, rates, means, [min(bits) for bits in finals], [max(bits) for bits in finals]))
    ticks = [1e4 * rate for rate in RATES]
    panel = Panel("mean and range over seeds", "learning rate x 10,000", f"bits/{unit}", curves, ticks=ticks)
    return Curves([panel])


def _along(tokens: int, row: Summed, base: Summed) -> Curve:
    """The geometric mean over the seeds at each validation; a step trains on so many tokens."""
    first = min(SHOWN_FROM, len(row.records[0].along) - 1)
    steps = [step for step, _ in row.records[0].along][first:]
    pairs = [(a.along[first:], b.along[first:]) for a, b in zip(row.records, base.records, strict=True)]
    means = [
        math.exp(math.fsum(math.log(a[i][1] / b[i][1]) for a, b in pairs) / len(pairs)) for i in range(len(steps))
    ]
    return Curve(row.name, [step * tokens for step in steps], means)


def _by_cost(row: Summed) -> Curve:
    """One point: the ratio at equal tokens with its 95 % interval."""
    assert row.tokens is not None
    ratio = row.tokens.ratio
    low, high = (ratio.mean if value is None else value for value in (ratio.low, ratio.high))
    return Curve(row.name, [row.records[0].training / 1e3], [ratio.mean], [low], [high])


# --- readings ----------------------------------------------------------------------------------------


def _pairs(study: StudyOutcome, name: str) -> list[Compared]:
    """Every comparison that a statement makes, and every row's with its baseline."""
    names = [(e.name, e.base) for _, expectations in EXPECTATIONS.get(name, ()) for e in expectations]
    names += [(row.name, row.against) for row in study.plan.rows if isinstance(row, Variant) and row.against]
    return study.state.compared(dict.fromkeys(names))


def _tuned_pairs(optima: Mapping[str, Sequence[Optimum]]) -> list[Compared]:
    """Full CEM against both Llamas, each at its best learning rate."""
    bits = {name: {i: o.bits for i, o in enumerate(each)} for name, each in optima.items() if each}
    bases = [base for base in (ROTARY, ALIBI) if FULL in bits and base in bits]
    return [compared(f"{FULL}, tuned", f"{base}, tuned", bits[FULL], bits[base]) for base in bases]


def _best(name: str, optima: Sequence[Optimum]) -> dict[str, Any]:
    rate = spread([o.rate for o in optima]).mean
    return {"model": name, "rate": rate, "at_edge": any(o.at_edge for o in optima)}
