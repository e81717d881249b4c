"""What a fixed memory costs, once all trainings are judged, and how the page shows it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from synthetic.studies.engine import report
from synthetic.studies.engine.comparisons import Compared, family
from synthetic.studies.engine.designs import LAYERS
from synthetic.studies.engine.pages import ratio_dots
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.engine.tuning import StudyState
from synthetic.studies.fixed_memory.rows import MEMORIES, Key

Answer = Literal[
    "refreshed is better", "equivalent", "fixed is better", "depends on the step", "undecided", "not yet"
]

MEANS: dict[Answer, str] = {
    "refreshed is better": "At equal tokens and step size, a memory that is read anew before each step needs fewer"
    " bits than a fixed one: the layer is better looped than its energy descended.",
    "equivalent": "At equal tokens and step size, a fixed memory is as good as one that is read anew: what looked"
    " like its cost was the length of the steps.",
    "fixed is better": "At equal tokens and step size, a fixed memory needs fewer bits than one that is read anew.",
    "depends on the step": "Which memory is better at equal tokens depends on the step size.",
    "undecided": "At one step size or at both, this study cannot tell which memory is better at equal tokens.",
    "not yet": "Nothing is compared yet: the plan looks once, when all that it judges is there.",
}


@dataclass(frozen=True)
class MemorySummary:
    """The study in short."""

    answer: Answer  # to what a fixed memory costs
    # refreshed over fixed memory at each step size, then all other comparisons; () before all are judged
    pairs: tuple[Compared, ...]
    # judged, to_judge: trainings for judging, finished and in all
    judged: int
    to_judge: int


def summarise(plan: Plan, state: StudyState) -> MemorySummary:
    """Compares the rows as planned, but only once all are judged."""
    judged, to_judge = sum(len(tuned.records) for tuned in state.rows), len(plan.rows) * plan.seeds
    if judged < to_judge:
        return MemorySummary("not yet", (), judged, to_judge)
    memories = [(refreshed, fixed) for fixed, refreshed, _ in MEMORIES]
    further = [(several, one) for fixed, refreshed, one in MEMORIES for several in (fixed, refreshed)]
    further += [
        (Key.FIXED_LONG, Key.FIXED_SHORT),
        (Key.REFRESHED_LONG, Key.FIXED_SHORT),
        (Key.ONE_LONG, Key.ONE_SHORT),
    ]
    further += [(Key.FIXED_SHORT, base) for base in (Key.LONGER, Key.WIDER, Key.LLAMA)]
    further += [(key, Key.ONE_SHORT) for key in (Key.LONGER, Key.WIDER, Key.TIED, Key.LLAMA)]
    further.append((Key.TIED, Key.LLAMA))
    # two families, so that the answer about memories does not depend on how much else is compared
    first, second = (family(state.compared(keys)) for keys in (memories, further))
    return MemorySummary(answered(first), (*first, *second), judged, to_judge)


def answered(memories: Sequence[Compared]) -> Answer:
    """The joint answer of the comparisons of memories at both step sizes."""
    verdicts = {pair.verdict for pair in memories}
    if len(memories) < 2 or not verdicts <= {"better", "worse", "equivalent"}:
        return "undecided"
    if len(verdicts) > 1:
        return "depends on the step"
    answers: dict[str, Answer] = {"better": "refreshed is better", "worse": "fixed is better"}
    return answers.get(verdicts.pop(), "equivalent")


def read(study: StudyOutcome) -> Findings:
    """The findings of the study, as far as they may be known."""
    plan, summary = study.plan, summarise(study.plan, study.state)
    scale = f"{plan.rows[0].design.preconditioner} P, {plan.size}, {plan.per_parameter:.3g} tokens per parameter"
    return report.findings(
        study,
        f"What does a fixed memory cost? {LAYERS[plan.replaced]}, {scale}",
        MEANS[summary.answer],
        f"{summary.judged} of the {summary.to_judge} trainings that judge are done (plan {plan.name}).",
        compared=summary.pairs,
        base=Key.ONE_SHORT,
        pictures=ratio_dots(summary.pairs, Key.ONE_SHORT),
        figures={"verdict": {"word": summary.answer, "why": MEANS[summary.answer]}, "plan": plan.name},
    )
