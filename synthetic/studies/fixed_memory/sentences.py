"""What the study says, once all is judged: what it costs that the memory stays fixed, and what length does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from cemverify.results.envelope import Table
from cemverify.results.numbers import shown_ratio
from synthetic.studies.engine import tables
from synthetic.studies.engine.comparisons import Compared, family, pair_of
from synthetic.studies.engine.designs import LAYERS, cost, more_parameters, parameters
from synthetic.studies.engine.pages import GENERATED, Dots, Page, Picture, about_dots, joined, paragraph, ratio_dots
from synthetic.studies.engine.plan import Plan
from synthetic.studies.engine.study import Findings, StudyOutcome
from synthetic.studies.engine.tuning import StudyState
from synthetic.studies.fixed_memory.rows import LLAMA, LONGER, MEMORIES, ONE, TIED, WIDER, as_long, etas, several

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
    memories: tuple[Compared, ...]  # the refreshed over the fixed, at each step size
    further: tuple[Compared, ...]  # all other comparisons
    # judged, to_judge: trainings that judge, done and in all
    judged: int
    to_judge: int

    @property
    def pairs(self) -> tuple[Compared, ...]:
        """All comparisons; () before the look."""
        return *self.memories, *self.further


def summarise(plan: Plan, state: StudyState) -> MemorySummary:
    """Compares the rows as the plan says, once all are judged and not before."""
    judged, to_judge = sum(len(tuned.records) for tuned in state.rows), len(plan.rows) * plan.seeds
    if judged < to_judge:
        return MemorySummary("not yet", (), (), judged, to_judge)
    depth = plan.depth
    memories, further = [], []
    for eta in etas(depth):
        fixed, refreshed = several(depth, "fixed", eta), several(depth, "refreshed", eta)
        memories.append((refreshed, fixed))
        further += [(fixed, as_long(depth, eta)), (refreshed, as_long(depth, eta))]
    short, long = (several(depth, "fixed", eta) for eta in etas(depth))
    further += [(long, short), (several(depth, "refreshed", "1"), short), (as_long(depth, "1"), ONE)]
    further += [(short, base) for base in (LONGER, WIDER, LLAMA)]
    further += [(name, ONE) for name in (LONGER, WIDER, TIED, LLAMA)]
    further.append((TIED, LLAMA))
    # two families: what is said of the memories does not depend on how much else is compared
    first, second = (family(state.compared(names)) for names in (memories, further))
    return MemorySummary(answered(first), tuple(first), tuple(second), judged, to_judge)


def answered(memories: Sequence[Compared]) -> Answer:
    """The answer that the comparisons of the memories give together, at both step sizes."""
    verdicts = {pair.verdict for pair in memories}
    if len(memories) < 2 or not verdicts <= {"better", "worse", "equivalent"}:
        return "undecided"
    if len(verdicts) > 1:
        return "depends on the step"
    answers: dict[str, Answer] = {
        "better": "refreshed is better",
        "equivalent": "equivalent",
        "worse": "fixed is better",
    }
    return answers[verdicts.pop()]


_DESIGN = """\
## How it is measured

- **Plan {name}.** It says all that follows, and was written down before the first training that judges. Each
  such training carries its name. Another row, recipe, length or number of seeds is another plan, with trainings of
  its own. There is one look, after the last training.
- **Layers.** {layers}. P is {P} and positions are {positions}. *Fixed*: all steps of a layer read the memory N(h) of
  the first. *Refreshed*: the layer is applied {depth} times, so that each step reads the memory anew. Nothing else
  differs between the two.
- **Recipe.** Embeddings are N(0, 1) and have no weight decay; all layers are N(0, 1/D). All rows see {tokens:,}
  tokens{but}: {steps:,} steps of {batch} windows of {context}, {per:.3g} tokens for each parameter of
  Llama, on {corpus}.
- **Tuning.** Each row by itself, with {tuning_seeds} seeds that judge nothing: at least four learning rates, each
  twice the one before, at {short:.3g} of the length; the best and its neighbours at {long:.3g}. At both, more rates
  are tried until the best has a worse one on each side. The rate is the lowest point of the parabola through those
  three, on {tuning} windows of the first half of the validation part.
- **Judging.** {seeds} fresh seeds, {judging} windows of the second half. Rows are paired by seed: the same batches,
  and the same first value of every parameter that two models share.
- **Verdicts.** Equivalent if the 90 % interval lies within {margin:.1%}; better or worse if the p-value, corrected by
  Holm's method, is below 0.05; otherwise inconclusive. The two comparisons of the memories are one family of
  that correction, and all others another.
- **Answer.** "Refreshed is better" if it is at both step sizes, "equivalent" if both are, "fixed is better" if the
  refreshed memory is worse at both; "depends on the step" if both are decided and differ; else "undecided"."""


def read(study: StudyOutcome) -> Findings:
    """What the study says, as far as it may."""
    plan, state = study.plan, study.state
    summary = summarise(plan, state)
    blocks: list[str | Picture | Table] = [paragraph(sentences(plan, summary))]
    if summary.pairs:
        blocks.append(Picture("ratios", "Refreshed over fixed, and every row over T = 1", ratios(summary)))
        blocks.append(about_dots())
    but = f", but *{LONGER}* more" if plan.row(LONGER) is not None else ""
    blocks.append(_DESIGN.format(**study.measured, name=plan.name, but=but))
    if summary.pairs:
        blocks += [tables.comparisons(state, summary.pairs), tables.models(study, summary.pairs, ONE)]
        blocks.append(
            tables.need(summary.memories[0].deviation if summary.memories else None, "refreshed over fixed")
        )
    blocks += [tables.tuning(state, study.unit), GENERATED]
    scale = f"{plan.rows[0].design.preconditioner} P, {plan.size}, {plan.per_parameter:.3g} tokens a parameter"
    return Findings(
        Page(f"What does a fixed memory cost? {LAYERS[plan.replaced]}, {scale}", blocks),
        f"a fixed memory: {summary.answer}; plan {plan.name}, {summary.judged} of {summary.to_judge} judged",
        summary.pairs,
        figures={"verdict": {"word": summary.answer, "why": MEANS[summary.answer]}, "plan": plan.name},
    )


def sentences(plan: Plan, summary: MemorySummary) -> Iterator[str]:
    """What is known now."""
    layers, recipe = LAYERS[plan.replaced], plan.recipe
    yield f"**{MEANS[summary.answer]}**"
    scale = max(parameters(row.design) for row in plan.rows)
    yield (
        f"This is about {layers} with a {plan.rows[0].design.preconditioner} P, windows of {recipe.context}"
        f" tokens, {recipe.tokens:,} tokens and at most {scale:,} parameters. T is the number of steps inside a layer"
        " and eta their size; a ratio below 1 means fewer bits."
    )
    if summary.answer == "not yet":
        yield (
            f"{summary.judged:,} of the {summary.to_judge:,} trainings that judge are there. The page shows the"
            " tuning: bits at each learning rate, with seeds that judge nothing."
        )
        return
    yield f"The ratios rest on {plan.seeds} seeds."
    short, long = (several(plan.depth, "fixed", eta) for eta in etas(plan.depth))
    names = [*((pair.model, pair.base) for pair in summary.memories), (long, short), (short, ONE), (short, LONGER)]
    names.append((TIED, LLAMA))
    for model, base in names:
        if (pair := pair_of(summary.pairs, model, base)) is not None:
            yield f"*{model}* needs {shown_ratio(pair.comparison)} times the bits of *{base}*: {pair.verdict}."
    yield from _price(plan)


def _price(plan: Plan) -> Iterator[str]:
    """What the two steps and the wider layer cost."""
    plain, wider = plan.row(ONE), plan.row(WIDER)
    if plain is None:
        return
    flops = cost(plain.design, plan.recipe.context).training
    times = [
        f"with a {memory} memory {cost(row.design, plan.recipe.context).training / flops:.2f} times"
        for memory in MEMORIES
        if (row := plan.row(several(plan.depth, memory, "1"))) is not None
    ]
    if times:
        yield f"A token of training takes {joined(times)} the FLOPs that it takes with *{ONE}*."
    if wider is not None:
        yield more_parameters(wider, plain)


def ratios(summary: MemorySummary) -> Dots:
    """The refreshed memory over the fixed one, and every row over T = 1."""
    over_one = [pair for pair in summary.further if pair.base == ONE]
    rest = [pair for pair in summary.further if pair.base != ONE]
    return ratio_dots(
        [
            ("bits with a refreshed memory over those with a fixed one", _named(summary.memories)),
            (f"bits over those of {ONE}", [(pair.model, pair) for pair in over_one]),
            ("bits over those of other rows", _named(rest)),
        ]
    )


def _named(pairs: Sequence[Compared]) -> list[tuple[str, Compared]]:
    return [(f"{pair.model} / {pair.base}", pair) for pair in pairs]
