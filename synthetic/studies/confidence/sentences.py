"""What the study says: how much energies tell beside the entropy, question by question."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean

from cemverify.results.envelope import Cell, Table
from cemverify.results.numbers import NOTHING, shown_ratio
from synthetic.studies.confidence.rows import ONE, several
from synthetic.studies.engine import tables
from synthetic.studies.engine.comparisons import Compared, compared, family
from synthetic.studies.engine.designs import LAYERS, parameters
from synthetic.studies.engine.pages import GENERATED, Page, Picture, joined, paragraph, ratio_dots
from synthetic.studies.engine.study import Findings, Found
from synthetic.studies.engine.told import BACKWARDS, LOSS, PIECES, PIECES_OF_ONE, TOLD_WINDOWS, Told
from synthetic.studies.engine.tuning import State, Tuned

OF: dict[str, str] = {
    LOSS: "of the variance of a token's loss",
    PIECES: f"of telling windows of the text from the same with their {PIECES_OF_ONE} pieces in another order",
    BACKWARDS: "of telling windows of the text from the same backwards",
}


@dataclass(frozen=True)
class Added:
    """What energies add to the entropy for one question, asked of the trained models of one row.

    Attributes:
        row, question: which. told: by seed. found: what remains with both, over what remains with the entropy alone.
    """

    row: str
    question: str
    told: dict[int, Told]
    found: Compared


def summarise(found: State) -> tuple[Added, ...]:
    """All comparisons that have a seed, corrected for one another."""
    asked = [(tuned.row.name, question, by_seed) for tuned in found.rows for question, by_seed in _by_question(tuned)]
    pairs = family(
        [
            compared(
                f"{row}, {question}: both",
                "entropy alone",
                {seed: one.both for seed, one in told.items()},
                {seed: one.entropy for seed, one in told.items()},
            )
            for row, question, told in asked
        ]
    )
    return tuple(Added(*which, pair) for which, pair in zip(asked, pairs, strict=True))


def _by_question(tuned: Tuned) -> Iterator[tuple[str, dict[int, Told]]]:
    told = {
        seed: {one.question: one for one in record.told}
        for seed, record in tuned.judged.items()
        if record and record.told
    }
    for question in OF if told else ():
        yield question, {seed: found[question] for seed, found in told.items()}


_DESIGN = """\
## How it is measured

- **Models.** {layers}, with a {P} P and {positions} positions. All see {tokens:,} tokens: {steps:,} steps of
  {batch} windows of {context}, {per:.3g} tokens for each parameter of Llama, on {corpus}.
  Each row has its own learning rate, tuned with {tuning_seeds} seeds that judge nothing.
- **Tokens.** {windows} windows of the second half of the validation part, and the same windows in two ways from
  elsewhere: cut into {pieces} pieces that stand in another order, and backwards.
- **What is known** of a token is the entropy of the model's prediction there; or, of each CEM layer, the energy
  before its first step and how far its steps lower it; or both. The token's place in its window is known each time.
- **Answers** are given by gradient-boosted trees (scikit-learn's, with its defaults), which are fitted to one half of
  the windows and asked about the other, both ways. Trees follow any curve in the entropy, so energies gain nothing by
  being another function of it.
- **What remains** is 1 - R^2 of the loss, and 2 (1 - AUROC) of text from elsewhere: 1 if nothing is told, 0 if all
  is.
- **Verdicts** compare what remains with both with what remains with the entropy alone, paired by seed. Equivalent if
  the 90 % interval of the ratio lies within {margin:.1%}; better or worse if the p-value, corrected by Holm's method
  over the whole table, is below 0.05; otherwise inconclusive."""


def read(study: Found) -> Findings:
    """What the study says, as far as it is."""
    plan, found = study.plan, study.state
    added = summarise(found)
    said = list(sentences(added))
    scale = max(parameters(row.design) for row in plan.rows)
    blocks: list[str | Picture | Table] = [paragraph([*said, f"The models have {scale:,} parameters."])]
    if added:
        chart = ratio_dots([(_title(q), [(a.row, a.found) for a in added if a.question == q]) for q in OF])
        blocks.append(Picture("ratios", "What remains untold with energies, over what remains without", chart))
    blocks.append(_DESIGN.format(**study.measured, windows=TOLD_WINDOWS, pieces=PIECES_OF_ONE))
    if added:
        blocks += [remaining(added), tables.models(study, _bits(found, several(plan.depth)), ONE)]
    blocks += [tables.tuning(found, study.unit), GENERATED]
    return Findings(
        Page(f"Energy as confidence: {LAYERS[plan.replaced]}, {plan.size}", blocks),
        " ".join(said),
        [one.found for one in added],
        "What remains untold with energies, over what remains with the entropy alone",
        {
            "figure": "what remains untold",
            "told": [
                {"model": a.row, "seeds": {str(seed): asdict(one) for seed, one in a.told.items()}, "of": a.question}
                for a in added
            ],
        },
    )


def _bits(found: State, deep: str) -> list[Compared]:
    """What the steps themselves change: the bits with several over those with one."""
    several_steps, one_step = found.of(deep), found.of(ONE)
    return [several_steps.over(one_step)] if several_steps and one_step else []


def sentences(added: Sequence[Added]) -> Iterator[str]:
    """What is known now, question by question."""
    if not added:
        yield "No seed has judged a row yet."
        return
    for question, of in OF.items():
        told = [a for a in added if a.question == question]
        each = [f"in *{a.row}* {shown_ratio(a.found.comparison)} of that ({WORDS[a.found.verdict]})" for a in told]
        alone = fmean(one.entropy for a in told for one in a.told.values())
        yield (
            f"The entropy of the softmax leaves {alone:.1%} {of} untold. Where the energies of all layers are known,"
            f" too, what remains is {joined(each)}."
        )


# What a comparison of what remains says of energies.
WORDS = {
    "better": "energies add something",
    "worse": "energies mislead",
    "equivalent": "energies add nothing",
    "inconclusive": "undecided",
}


def _title(question: str) -> str:
    return f"{question}: what remains with both, over the entropy alone"


def remaining(added: Sequence[Added]) -> Table:
    """What remains untold, by row, question and what is known."""
    rows: list[list[Cell]] = []
    for a in added:
        c = a.found.comparison
        rows.append(
            [
                a.row,
                a.question,
                len(a.told),
                f"{fmean(one.entropy for one in a.told.values()):.4f}",
                f"{fmean(one.energies for one in a.told.values()):.4f}",
                f"{fmean(one.both for one in a.told.values()):.4f}",
                shown_ratio(c),
                NOTHING if c is None or c.holm is None else f"{c.holm:.4f}",
                a.found.verdict,
            ]
        )
    columns = ("row", "question", "seeds", "entropy", "energies", "both", "both / entropy [95 %]", "p (Holm)")
    return Table("What remains untold, by what is known of a token, mean over seeds", (*columns, "verdict"), rows)
