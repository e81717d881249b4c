"""The page of a language study: what was asked, what was found, and what that says of the paper's statements."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from cemverify.results.envelope import Table, write_text
from cemverify.results.statistics import FEWEST
from cemverify.results.tables import markdown
from synthetic.language.paper import figures
from synthetic.language.paper.studies import TINY, StudyPlan
from synthetic.language.paper.summary import MARGIN, Row
from synthetic.statements import Statement

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
  Chinchilla's law predicts between the paper's two smallest sizes; better or worse if {rule}; otherwise inconclusive.
  A run that diverged is counted, and its row shows no mean.
- **Reading** of a statement, from comparisons at equal tokens only. "Better" and "worse" agree if the 95 % interval
  lies on their side of 1, and disagree if it lies on the other side or the models are equivalent. "Close" agrees if
  they are equivalent, and disagrees if the interval lies beyond the margin. If a statement needs several comparisons,
  one that disagrees is enough to disagree. Everything else is undecided.
- CEM attention has ALiBi positions and is compared with Llama with ALiBi. A CEM MLP stands in a Llama with rotary
  positions and is compared with that Llama. Unless stated otherwise, CEM layers have a diagonal of A_k shared by the
  heads, a diagonal preconditioner, and RMSNorm inside with one gain per channel."""

_INTERVAL_RULE = f"the interval excludes 1 (with fewer than {FEWEST} seeds there is no p-value)"

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
        f"Generated by `{command}`; on a CPU, the same command generates the same page.",
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
