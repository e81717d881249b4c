"""The page of a language study: what was asked, what was found, and what that says of the paper's statements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cemverify.results import Table, write_text
from cemverify.tables import markdown
from synthetic.language.paper import figures
from synthetic.language.paper.studies import TINY, StudyPlan
from synthetic.language.paper.summary import MARGIN, Row
from synthetic.statements import Statement
from synthetic.statistics import FEWEST

_HOW_TO_READ = """\
Each model is trained on the same batches in the same order, and shares with the others the first value of every
parameter that both have. Seeds differ in both.

Corpus: {corpus}.

- **Equal tokens**: validation bits per {unit} after the last step over those of the baseline, the geometric mean of
  the ratios seed by seed, with a 95 % interval of Student's t on their logarithms.
- **Equal FLOPs**: the same when each model has spent what the study's cheapest one spends in all (matrix products,
  causal attention counted as if dense), read between two validations. A model that is cut short so is still at a
  higher learning rate than one that ends: this column favours the cheaper model.
- **Equal parameters**: the same, at equal tokens, of the model with its MLP widened until it has the parameters of
  the baseline, in rows that have such a twin; of the model itself where it is as large already.
- **Verdict**: equivalent if the 90 % interval lies within {margin:.1%}, a seventh of what Chinchilla's law puts
  between the paper's two smallest sizes; inconclusive if nothing can be told; better or worse if {rule}. A run that
  diverged is counted, and its row then shows no mean.
- **Reading** of a statement, from comparisons at equal tokens alone: "better" and "worse" agree if the 95 % interval
  lies on their side of 1, and disagree if it lies on the other or the models are equivalent; "close" agrees if they
  are equivalent, and disagrees if the interval lies beyond the margin; of several comparisons one that disagrees is
  enough to. All else is undecided.
- Replaced attention has ALiBi positions and is compared with Llama with ALiBi; replaced MLPs stand in a Llama with
  rotary positions and are compared with that. CEM layers have, where nothing else is said, a diagonal of A_k shared
  by the heads, a diagonal preconditioner and a gain per channel inside."""

_INTERVAL_RULE = f"the interval excludes 1 (with fewer than {FEWEST} seeds there is no p-value)"

_NOT_SAID = """\
## What this does not say

- The models have about {parameters:,} parameters and see {tokens:,} tokens,{scale}
- One recipe and one learning rate for all models but in the study of learning rates.
- An interval speaks of other seeds, weights and batches together, not of other text, sizes or recipes.
- The paper leaves open which preconditioner, diagonal and positions its single replacements have; those above are
  ours.
- "Undecided" means that so many seeds do not tell, not that there is no difference."""

_TINY_SCALE = """
  where the paper's have 86 to 162 million and see billions: what fails here may hold there, and the reverse."""
_PAPER_SCALE = """
  Chinchilla's number, of one text, in runs that are not the paper's own."""


def write_page(
    path: Path,
    command: str,
    plan: StudyPlan,
    corpus: str,
    unit: str,
    rows: Sequence[Row],
    read: Sequence[Statement],
    tables: Sequence[Table],
) -> list[Path]:
    """Writes the page and its figures beside it; returns what was written.

    Raises:
        ResultError: a file cannot be written.
    """
    if plan.study == "learning-rate":
        drawn = {"rates": ("Bits over the learning rate", figures.learning_rates(rows, unit))}
    else:
        drawn = {"ratios": ("Along the way, and what the models cost", figures.ratios(plan, rows, unit))}
    files = {path.with_name(f"{path.stem}-{name}.svg"): text for name, (_, text) in drawn.items()}
    # what the verdict rests on depends on whether there are seeds enough for a p-value
    rule = "the p-value, corrected by Holm's method, is below 0.05" if plan.seeds >= FEWEST else _INTERVAL_RULE
    table = Table("", ("the paper", "here", "reading"), [[s.text, s.found, s.reading] for s in read])
    parts = [
        f"# {plan.study.capitalize()} in a language model, {plan.figure}, size {plan.size}",
        f"Made by `{command}`; on a CPU, running it again makes the same page.",
        _HOW_TO_READ.format(corpus=corpus, unit=unit, rule=rule, margin=MARGIN),
        "## The paper's statements",
        markdown([table]).partition("\n\n")[2],
        *[f"![{title}]({path.stem}-{name}.svg)" for name, (title, _) in drawn.items()],
        markdown(tables),
        _NOT_SAID.format(
            parameters=max(row.records[0].parameters for row in rows),
            tokens=plan.recipe.tokens,
            scale=_TINY_SCALE if plan.size == TINY else _PAPER_SCALE,
        ),
    ]
    for file, text in {**files, path: "\n\n".join(parts) + "\n"}.items():
        write_text(file, text)
    return [*files, path]
