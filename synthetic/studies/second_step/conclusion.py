"""Whether the second step pays, and how the page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from cemverify.results.envelope import Cell, Table
from synthetic.studies.engine import report
from synthetic.studies.engine.comparisons import MARGIN, Compared, family
from synthetic.studies.engine.designs import LAYERS
from synthetic.studies.engine.pages import ratio_dots
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.readings import counted
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.engine.tuning import StudyState, Tuned
from synthetic.studies.second_step.rows import LEARNED, LLAMA, LONGER, PLAIN, TWICE, UNIT, WIDER, Key, several

Verdict = Literal["pays", "does not pay", "undecided"]
# the texts avoid "pays": the comparison is at equal tokens and ignores the cost
ANSWERS: dict[Verdict, str] = {
    "pays": "A second step helps in {} at this size and at equal tokens.",
    "does not pay": "A second step does not help in {} at this size and at equal tokens.",
    "undecided": "Whether a second step helps in {} at this size and at equal tokens is undecided.",
}


@dataclass(frozen=True)
class StepSummary:
    """The study in short."""

    pairs: tuple[Compared, ...]  # all comparisons
    verdict: Verdict  # whether the second step pays
    why: str  # in a sentence


def summarise(plan: Plan, state: StudyState) -> StepSummary:
    """Compares every row with T = 1, and the recursion with each control."""
    deep = several(plan.depth)
    compared = [(row.key, PLAIN) for row in plan.rows if row.key != PLAIN]
    compared += [(deep, base) for base in (LONGER, WIDER, TWICE, LLAMA)]
    compared += [(Key(kind, plan.depth), LONGER) for kind in (UNIT, LEARNED)]
    further = [row.key for row in plan.rows if row.beyond and isinstance(row.key, Key) and row.key.steps > 1]
    compared += [(key, base) for key in further for base in (LONGER, deep, WIDER, TWICE)]
    compared += [(key, replace(key, steps=1)) for key in further]
    pairs = state.compared(compared)
    beyond = {row.key for row in plan.rows if row.beyond}
    # two families, so that results for the paper's rows do not depend on how many others were tried
    pairs = family([p for p in pairs if p.keys[0] not in beyond]) + family([p for p in pairs if p.keys[0] in beyond])
    by_key = {pair.keys: pair for pair in pairs}
    return StepSummary(tuple(pairs), *_verdict([by_key.get((deep, base)) for base in (PLAIN, LONGER)]))


def _verdict(pairs: Sequence[Compared | None]) -> tuple[Verdict, str]:
    """It pays if it is better than both rows with T = 1, and does not if it is worse than one or equivalent."""
    there = [pair for pair in pairs if pair is not None]
    if len(there) < len(pairs):
        return "undecided", "the rows that decide it are not in this study"
    if any(pair.comparison is None for pair in there):
        return "undecided", "no seed has judged them all yet"
    deep, against = f"*{there[0].model}*", [f"*{pair.base}*" for pair in there]
    if all(pair.verdict == "better" for pair in there):
        return "pays", f"{deep} is better than {' and than '.join(against)}"
    for pair in there:
        if pair.verdict in ("worse", "equivalent"):
            word = "worse than" if pair.verdict == "worse" else f"equivalent to (within {MARGIN:.1%})"
            return "does not pay", f"{deep} is {word} *{pair.base}*"
    open_ones = [f"*{pair.base}*" for pair in there if pair.verdict != "better"]
    return "undecided", f"{deep} cannot be told apart from {' or '.join(open_ones)}"


# --- the page ----------------------------------------------------------------------------------------


def read(study: StudyOutcome) -> Findings:
    """The findings of the study, as far as it has come."""
    plan, state, layers = study.plan, study.state, LAYERS[study.plan.replaced]
    summary, deep = summarise(plan, state), several(plan.depth)
    question, answer = "Does a second step help", ANSWERS[summary.verdict].format(layers)
    why = f"This rests on {counted(state.seeds, 'seed')}: {summary.why}."
    if plan.row(deep) is None:
        question, why = "Which single step is better", "No row takes a second step."
        answer = "; ".join(f"*{pair.model}* against *{pair.base}*: {pair.verdict}" for pair in summary.pairs) + "."
    elif plan.row(WIDER) is not None:  # the study also asks what else the FLOPs of the second step could buy
        question += " against a wider layer"
    main = [p for p in summary.pairs if p.keys[1] == PLAIN or p.keys[0] == deep]
    return report.findings(
        study,
        f"{question}? {layers}, {plan.size}, {plan.per_parameter:.3g} tokens per parameter",
        answer,
        why,
        compared=summary.pairs,
        base=PLAIN,
        pictures=ratio_dots(main, PLAIN),
        shown=steps(state.of(deep)),
        figures={"verdict": {"word": summary.verdict, "why": summary.why}},
    )


def steps(tuned: Tuned | None) -> list[Table]:
    """How a row's steps lie in each layer, before and after training, for the first judged seed."""
    if tuned is None or not tuned.records:
        return []
    rows: list[list[Cell]] = [
        [*layer.cells(when), " > ".join(f"{energy:.1f}" for energy in layer.energies)]
        for when, of_layers in (("start", tuned.records[0].start), ("trained", tuned.records[0].end))
        for layer in of_layers
    ]
    columns = (
        *("layer", "when", "rms of the stream", "length of each step / stream", "cosine to the step before"),
        *("cosine of N(x_t), N(h)", "energy, step by step"),
    )
    return [Table(f"How the steps of {tuned.row.name} lie, means over tokens", columns, rows)]
