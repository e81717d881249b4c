"""Whether one model serves every number of steps: bits with each number at test time, and with each stop."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from statistics import fmean

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING
from synthetic.figures.charts import Curve, Panel
from synthetic.studies.depth_dial.rows import TEST_DEPTHS, Key
from synthetic.studies.engine import report, stopping
from synthetic.studies.engine.comparisons import Compared, compared, family
from synthetic.studies.engine.designs import LAYERS, cost
from synthetic.studies.engine.pages import Curves, Picture
from synthetic.studies.engine.stopping import STOPS, AtStop
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.engine.tuning import StudyState, Tuned

# --- what is known of each row -----------------------------------------------------------------------


def at_depths(tuned: Tuned) -> dict[int, float | None]:
    """Mean bits over seeds with each T' of `TEST_DEPTHS`, None if any seed has none; {} without a record."""
    columns = zip(*(record.at_depths for record in tuned.records if record.at_depths), strict=True)
    means = (None if None in column else fmean(b for b in column if b is not None) for column in columns)
    return dict(zip(TEST_DEPTHS, means, strict=False))


def at_stops(tuned: Tuned) -> tuple[AtStop, ...]:
    """Means over seeds with each of `STOPS`; () if a seed has none because it diverged."""
    replicates = [record.at_stops for record in tuned.records]
    return stopping.means(replicates) if all(replicates) else ()


def against(state: StudyState) -> list[Compared]:
    """Each dial (a model for all T) with T steps against the model that was trained for T."""
    pairs = []
    for dial in (tuned for tuned in state.rows if tuned.row.design.dial):
        for i, T in enumerate(TEST_DEPTHS):
            judged = {seed: record for seed, record in dial.judged.items() if record is not None and record.at_depths}
            mine = {seed: bits for seed, record in judged.items() if (bits := record.at_depths[i]) is not None}
            other = state.of(Key(T))
            if other is not None and mine.keys() & other.finals.keys():
                name, keys = f"{dial.row.name}, with {T}", ((dial.row.key, T), other.row.key)
                pairs.append(compared(name, other.row.name, mine, other.finals, keys=keys))
    return family(pairs)


# --- the page ----------------------------------------------------------------------------------------


def read(study: StudyOutcome) -> Findings:
    """The findings of the study, as far as it has come."""
    plan, state, recipe = study.plan, study.state, study.plan.recipe
    pairs, has_bits = against(state), any(map(at_depths, state.rows))
    dials = [tuned for tuned in state.rows if tuned.row.design.dial]
    findings = report.findings(
        study,
        f"Depth as a dial: {LAYERS[plan.replaced]}, size {plan.size}",
        answer(pairs),
        " ".join(best_of(study, dials)),
        compared=pairs,
        pictures=[Picture("test-time", "Bits over the number of steps at test time", picture(study))]
        if has_bits
        else [],
        shown=[test_time(study), stopped(study)],
        figures={
            "recipe": (
                f"{recipe.steps:,} steps on {study.corpus}, embeddings N(0, 1), each row at its own learning rate"
                f"{', through torch.compile' if plan.compiled else ''}"
            ),
            "figure": f"bits per {study.unit}",
            "source_bits": study.floor,
        },
    )
    return replace(findings, title="One model for all T over a model for each")


def answer(pairs: Sequence[Compared]) -> str:
    """In how many comparisons one model for all T is worse than the model for that T."""
    told = [verdict for pair in pairs if "few" not in (verdict := pair.verdict)]
    if not told:
        return "Whether one model for all T is as good as a model for each is undecided: there are too few seeds."
    worse = f"{told.count('worse')} of {len(told)} comparisons"
    return f"One model for all T is worse than the model that was trained for the same T in {worse}."


def best_of(study: StudyOutcome, dials: Sequence[Tuned]) -> Iterator[str]:
    """The best number of steps for each dial."""
    for dial in dials:
        if at := above(study, dial):
            best = min(at, key=lambda T: at[T])
            yield f"*{dial.row.name}* does best with {best} steps: {at[best]:.4f} {quantity(study)}."


def quantity(study: StudyOutcome) -> str:
    """The quantity that is shown, in words."""
    return f"bits/{study.unit}" if study.floor is None else f"bits/{study.unit} above the source"


def above(study: StudyOutcome, tuned: Tuned | None) -> dict[int, float]:
    """A row's bits at each T' where they are finite, less the floor if that is known."""
    found = {} if tuned is None else at_depths(tuned)
    return {T: bits - (study.floor or 0.0) for T, bits in found.items() if bits is not None}


def test_time(study: StudyOutcome) -> Table:
    """Bits of every row with each number of steps at test time."""
    rows: list[list[Cell]] = []
    for tuned in study.state.rows:
        at = above(study, tuned)
        flops = cost(tuned.row.design, study.plan.recipe.context).training / 1e6
        figures = [_decimals(at.get(T)) for T in TEST_DEPTHS]
        rows.append([tuned.row.name, tuned.row.why, len(tuned.records), f"{flops:,.3f}", *figures])
    columns = ("row", "what", "seeds", "training MFLOPs/token", *(f"T' = {T}" for T in TEST_DEPTHS))
    return Table(f"{quantity(study)}, with T' steps at test time, mean over seeds", columns, rows)


def stopped(study: StudyOutcome) -> Table:
    """Bits and steps of every row with stops by energy, beside taking all steps and the best number of them."""
    last = TEST_DEPTHS[-1]
    rows: list[list[Cell]] = []
    for tuned in study.state.rows:
        if stops := at_stops(tuned):
            at = above(study, tuned)
            best = min(at, key=lambda T: at[T], default=None)
            ends = [
                NOTHING if s.figure is None else f"{_decimals(s.figure - (study.floor or 0.0))} ({s.steps:.1f})"
                for s in stops
            ]
            fewest = NOTHING if best is None else f"{_decimals(at[best])} (T' = {best})"
            rows.append([tuned.row.name, _decimals(at.get(last)), fewest, *ends])
    columns = ("row", f"all {last} steps", "the best T' of those tried", *(f"q = {stopping.share(q)}" for q in STOPS))
    title = f"{quantity(study)}, stopped by energy after at most {last} steps (mean steps per token), mean over seeds"
    return Table(title, columns, rows)


def picture(study: StudyOutcome) -> Curves:
    """Bits over T': the models for one T at that T, and the dials at every T'."""
    at_own = {T: at[T] for T in TEST_DEPTHS if T in (at := above(study, study.state.of(Key(T))))}
    curves = [Curve("a model for each T", list(at_own), list(at_own.values()))] if at_own else []
    most = 4 * max(at_own.values(), default=math.inf)  # values that explode would hide the rest
    for tuned in study.state.rows:
        seen = {T: bits for T, bits in above(study, tuned).items() if bits < most}
        if tuned.row.design.dial and seen:
            curves.append(Curve(tuned.row.name, list(seen), list(seen.values())))
    return Curves([Panel("depth as a dial", "T' at test time", quantity(study), curves, ticks=(1, 2, 4, 8, 16))])


def _decimals(above: float | None) -> str:
    if above is None:
        return NOTHING
    return f"{above:.4f}" if above < 100 else f"{above:.1e}"
