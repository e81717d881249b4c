"""The page of a recursion study: what was asked, what was found, and what that says of the paper's statements."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from cemverify.results import Table, write_text
from cemverify.tables import markdown
from synthetic.recursion import figures
from synthetic.recursion.presets import RecursionConfig
from synthetic.recursion.summary import Row
from synthetic.statements import Statement
from synthetic.statistics import FEWEST, MARGIN

_HOW_TO_READ = """\
Recursive CEM MLPs learn functions drawn from Gaussian processes. Everything but the model is shared: the functions,
their points and noise, the batches, and the first values of every parameter that two models have in common.

- **RMSE** is `sqrt(mean((m - mu)^2 + v))`, the error to expect of predictions `m` given the data, with the exact
  posterior mean `mu` and variance `v`. No predictor has less than the last row, the **floor**. *Observed* RMSE is
  measured on the noise-free function that was drawn. **Excess** is `sqrt(mean((m - mu)^2))`, 0 at best.
  **Gap closed** is how much of the way from ridge to the floor.
- Every contender is trained at each learning rate of the study; the points held out of its training set choose the
  rate and the training step whose weights count. "(edge)": the best rate was the smallest or the largest tried.
- **Ratio** is the geometric mean over functions of its RMSE to that of its family's smallest T (for a family of one,
  of plain CEM's), with a 95 % interval of Student's t on the logarithms. **p** are two-sided: the t test corrected by
  Holm's method for all rows of a table, and sign flips. **Detectable** is the relative difference that such a test
  finds in 80 % of studies.
- **Verdict**: better or worse if the corrected p is below 0.05{few}; equivalent if the 90 % interval lies within
  {margin:.0%}; inconclusive otherwise. A run that diverged is counted, and its row then shows no mean.
- FLOPs are of one prediction, counted as the operations run."""

_NOT_SAID = """\
## What this does not say

- The paper gives neither the kernels' parameters nor the sizes, the optimiser or the number of points of its
  synthetic study, so this is a study of the same question and not a replication of its figures.
- One recipe, tuned in its learning rate alone, at one size of model and of training set. With fewer training points
  more depth learns the noise sooner, and a smaller T is best.
- An interval speaks of other functions of the same prior, with the first weights that belong to them; not of other
  priors, widths or recipes.
- "Undecided" means that this many functions do not tell, not that there is no difference."""


def write_page(
    path: Path,
    command: str,
    config: RecursionConfig,
    studied: Mapping[str, Sequence[Row]],
    read: Sequence[Statement],
    tables: Sequence[Table],
) -> list[Path]:
    """Writes the page and its figures beside it; returns what was written.

    Raises:
        ResultError: a file cannot be written.
    """
    drawn = {
        "ratios": ("What more steps do", figures.ratios(studied)),
        "costs": ("What they cost", figures.costs(studied)),
        "test-time": ("Plain CEM with another number of steps at test time", figures.test_time(studied)),
    }
    files = {path.with_name(f"{path.stem}-{name}.svg"): text for name, (_, text) in drawn.items()}
    pictures = [f"![{title}]({path.stem}-{name}.svg)" for name, (title, _) in drawn.items()]
    few = f", or with fewer than {FEWEST} functions if the interval excludes 1" if config.seeds < FEWEST else ""
    parts = [
        "# The recursion-depth study",
        f"Made by `{command}`; running it again makes the same page.",
        _HOW_TO_READ.format(few=few, margin=MARGIN),
        "## The paper's statements",
        _statements(read),
        *pictures,
        markdown(tables),
        _NOT_SAID,
    ]
    for file, text in {**files, path: "\n\n".join(parts) + "\n"}.items():
        write_text(file, text)
    return [*files, path]


def _statements(read: Sequence[Statement]) -> str:
    table = Table("", ("the paper", "here", "reading"), [[s.text, s.found, s.reading] for s in read])
    return markdown([table]).partition("\n\n")[2]
