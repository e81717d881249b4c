"""What the study says: bits with each number of steps at test time, and with each stop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_ratio
from synthetic.figures.charts import Curve, Panel
from synthetic.studies.depth_dial.rows import TEST_DEPTHS, own
from synthetic.studies.engine import stopping, tables
from synthetic.studies.engine.comparisons import Compared, compared, family
from synthetic.studies.engine.designs import LAYERS, cost, doubling, parameters
from synthetic.studies.engine.pages import GENERATED, Curves, Page, Picture, paragraph
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.stopping import STOPS, AtStop
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.engine.tuning import StudyState, Tuned

# --- what is known -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class DialSummary:
    """What is known."""

    # means over seeds with each T' of `TEST_DEPTHS`, by row; None where a seed has no finite one
    bits: dict[str, tuple[float | None, ...]]
    # by row that is a dial, in their order: the T' up to which its bits fall with every T' that was tried
    falls: dict[str, int]
    # each dial with T steps against the model that was trained for them, by name and T
    against: dict[tuple[str, int], Compared]
    # means over seeds with each of `STOPS`, by row; no entry where a seed lacks one
    stopped: dict[str, tuple[AtStop, ...]]
    # the training FLOPs of all models for one T together, over those of a model for all T; None if the study lacks
    # either
    saved: float | None
    unit: str  # of the text
    floor: float | None  # bits that no predictor can do without; None of text, and 0 is subtracted there

    @property
    def off(self) -> float:
        """What is subtracted from bits where they are shown."""
        return self.floor or 0.0

    @property
    def quantity(self) -> str:
        """What is shown, in words."""
        return f"bits/{self.unit}" if self.floor is None else f"bits/{self.unit} above the source"

    def above(self, name: str) -> dict[int, float]:
        """What a row has at each T' where it is finite, the mean over seeds above the floor."""
        at = zip(TEST_DEPTHS, self.bits.get(name, ()), strict=False)
        return {T: bits - self.off for T, bits in at if bits is not None}


def summarise(study: StudyOutcome) -> DialSummary:
    """The summary of what is there."""
    plan, state = study.plan, study.state
    bits = {tuned.row.name: means for tuned in state.rows if (means := _means(tuned)) is not None}
    dials = [tuned for tuned in state.rows if tuned.row.design.dial]
    apart = [tuned for tuned in state.rows if not tuned.row.design.dial]
    pairs = [(dial, T, pair) for dial in dials for T in TEST_DEPTHS if (pair := _against(dial, T, state)) is not None]
    corrected = family([pair for _, _, pair in pairs])
    return DialSummary(
        bits,
        {t.row.name: falls_up_to(bits[t.row.name]) for t in dials if t.row.name in bits},
        {(dial.row.name, T): pair for (dial, T, _), pair in zip(pairs, corrected, strict=True)},
        {tuned.row.name: ended for tuned in state.rows if (ended := _stopped(tuned))},
        _flops(apart, plan) / _flops(dials[:1], plan) if apart and dials else None,
        study.unit,
        study.floor,
    )


def _flops(rows: Sequence[Tuned], plan: Plan) -> float:
    """FLOPs per token of training all of these models."""
    return sum(cost(tuned.row.design, plan.recipe.context).training for tuned in rows)


def falls_up_to(bits: Sequence[float | None]) -> int:
    """The last T' of `TEST_DEPTHS` up to which every step makes the bits fewer."""
    reached = TEST_DEPTHS[0]
    for before, after, T in zip(bits, bits[1:], TEST_DEPTHS[1:], strict=False):
        if before is None or after is None or after >= before:
            break
        reached = T
    return reached


def _means(tuned: Tuned) -> tuple[float | None, ...] | None:
    records = [record for record in tuned.records if record.at_depths]
    if not records:
        return None
    columns = zip(*(record.at_depths for record in records), strict=True)
    return tuple(None if None in column else fmean(b for b in column if b is not None) for column in columns)


def _stopped(tuned: Tuned) -> tuple[AtStop, ...]:
    replicates = [record.at_stops for record in tuned.records]
    return stopping.means(replicates) if all(replicates) else ()  # one that diverged has none


def _against(dial: Tuned, steps: int, state: StudyState) -> Compared | None:
    """A dial with so many steps against the model for them; None where no seed has both."""
    other = state.of(own(steps))
    i = TEST_DEPTHS.index(steps)
    mine = {
        seed: bits
        for seed, record in dial.judged.items()
        if record is not None and record.at_depths and (bits := record.at_depths[i]) is not None
    }
    if other is None or not mine.keys() & other.finals.keys():
        return None
    return compared(f"{dial.row.name}, with {steps}", own(steps), mine, other.finals)


# --- the page ----------------------------------------------------------------------------------------

_DESIGN = """\
## How it was measured

- **A model for each T** takes T steps of 1/T in training. **T drawn**: for each batch T is drawn from 1 to {depth}.
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


def read(study: StudyOutcome) -> Findings:
    """What the study says, as far as it is."""
    plan, state, summary = study.plan, study.state, summarise(study)
    known_sentences, recipe = list(sentences(summary)), plan.recipe
    scale = max(parameters(row.design) for row in plan.rows)
    blocks: list[str | Picture | Table] = [paragraph([*known_sentences, f"The models have {scale:,} parameters."])]
    if summary.bits:
        blocks.append(Picture("test-time", "Bits over the number of steps at test time", picture(state, summary)))
    blocks += [
        _DESIGN.format(**study.measured, depths=", ".join(map(str, doubling(plan.depth))), last=TEST_DEPTHS[-1]),
        test_time(plan, state, summary),
        stopped(summary),
        against(summary),
        tables.tuning(state, study.unit),
        GENERATED,
    ]
    return Findings(
        Page(f"Depth as a dial: {LAYERS[plan.replaced]}, size {plan.size}", blocks),
        " ".join(known_sentences),
        list(summary.against.values()),
        "One model for all T over a model for each",
        {
            "recipe": (
                f"{recipe.steps:,} steps on {study.corpus}, embeddings N(0, 1), each row at its own learning rate"
                f"{', through torch.compile' if plan.compiled else ''}"
            ),
            "figure": f"bits per {study.unit}",
            "source_bits": study.floor,
            "at_depths": [
                {"model": name, "steps": list(TEST_DEPTHS), "bits": list(bits)} for name, bits in summary.bits.items()
            ],
            "at_stops": [
                {"model": name, "stops": [asdict(stop) for stop in stops]} for name, stops in summary.stopped.items()
            ],
            "falls_up_to": [{"model": name, "steps": reached} for name, reached in summary.falls.items()],
        },
    )


def sentences(summary: DialSummary) -> Iterator[str]:
    """What is known now of the models for each T and for all of them, sentence by sentence."""
    each = {T: summary.above(own(T)) for T in TEST_DEPTHS}
    if apart := [f"{at[T]:.4f} (T = {T})" for T, at in each.items() if T in at]:
        yield f"Models that are trained for one T need {', '.join(apart)} {summary.quantity}."
    for name in summary.falls:
        if at := summary.above(name):
            first, best, last = min(at), min(at, key=lambda T: at[T]), max(at)
            yield (
                f"One model for all T (*{name}*) needs {at[first]:.4f} with one step, {at[best]:.4f} with {best}, its"
                f" best number, and {at[last]:.4f} with {last}."
            )
    ended = [
        f"*{name}* {best_stop[0] - summary.off:.4f} ({best_stop[1].steps:.1f} steps)"
        for name in summary.falls
        if (best_stop := stopping.best(summary.stopped.get(name, ()))) is not None
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
    verdicts = {
        name: [
            v for (model, _), pair in summary.against.items() if model == name and "few" not in (v := pair.verdict)
        ]
        for name in summary.falls
    }
    worse = [f"*{name}* is worse at {v.count('worse') or 'none'} of {len(v)} T" for name, v in verdicts.items() if v]
    if worse:
        yield f"Against the model that was trained for the same T, {' and '.join(worse)}."


# --- tables and picture ------------------------------------------------------------------------------


def test_time(plan: Plan, state: StudyState, summary: DialSummary) -> Table:
    """Bits of every row with each number of steps at test time."""
    rows: list[list[Cell]] = []
    for tuned in state.rows:
        at = summary.above(tuned.row.name)
        flops = cost(tuned.row.design, plan.recipe.context).training / 1e6
        figures = [_decimals(at.get(T)) for T in TEST_DEPTHS]
        rows.append([tuned.row.name, tuned.row.why, len(tuned.records), f"{flops:,.3f}", *figures])
    columns = ("row", "what", "seeds", "training MFLOPs/token", *(f"T' = {T}" for T in TEST_DEPTHS))
    return Table(f"{_above(summary)}, with T' steps at test time, mean over seeds", columns, rows)


def stopped(summary: DialSummary) -> Table:
    """Bits and steps of every row whose tokens stop by themselves, beside all steps and the best number of them."""
    last = TEST_DEPTHS[-1]
    rows: list[list[Cell]] = []
    for name, stops in summary.stopped.items():
        at = summary.above(name)
        best = min(at, key=lambda T: at[T], default=None)
        ends = [
            NOTHING if s.figure is None else f"{_decimals(s.figure - summary.off)} ({s.steps:.1f})" for s in stops
        ]
        rows.append(
            [
                name,
                _decimals(at.get(last)),
                NOTHING if best is None else f"{_decimals(at[best])} (T' = {best})",
                *ends,
            ]
        )
    columns = ("row", f"all {last} steps", "the best T' of those tried", *(f"q = {stopping.share(q)}" for q in STOPS))
    title = f"{_above(summary)}, stopped by energy after at most {last} steps (steps a token took), means"
    return Table(title, columns, rows)


def against(summary: DialSummary) -> Table:
    """One model for all T against the models for each."""
    rows: list[list[Cell]] = [
        [
            name,
            T,
            len(pair.seeds),
            shown_ratio(pair.comparison),
            ", ".join(f"{ratio:.4f}" for ratio in pair.ratios),
            pair.verdict,
        ]
        for (name, T), pair in summary.against.items()
    ]
    columns = ("model", "T", "seeds", "ratio [95 %]", "each seed", "verdict")
    return Table("Bits of one model for all T over those of the model for T, paired by seed", columns, rows)


def picture(state: StudyState, summary: DialSummary) -> Curves:
    """Bits over T': the models for each T at their own, and the dials at all."""
    at_own = {T: at[T] for T in TEST_DEPTHS if T in (at := summary.above(own(T)))}
    curves = [Curve("a model for each T", list(at_own), list(at_own.values()))] if at_own else []
    most = 4 * max(at_own.values(), default=math.inf)  # what explodes would leave nothing else to be seen
    for tuned in state.rows:
        seen = {T: bits for T, bits in summary.above(tuned.row.name).items() if bits < most}
        if tuned.row.design.dial and seen:
            curves.append(Curve(tuned.row.name, list(seen), list(seen.values())))
    return Curves([Panel("depth as a dial", "T' at test time", summary.quantity, curves, ticks=(1, 2, 4, 8, 16))])


def _above(summary: DialSummary) -> str:
    return summary.quantity if summary.floor is None else f"{summary.quantity}'s {summary.floor:.4f}"


def _decimals(above: float | None) -> str:
    if above is None:
        return NOTHING
    return f"{above:.4f}" if above < 100 else f"{above:.1e}"
