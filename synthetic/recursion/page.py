"""The page of a recursion study: what was asked, what was found, and what that says of the paper's statements."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

from cemverify.results.envelope import Table, write_text
from cemverify.results.statistics import FEWEST, MARGIN
from cemverify.results.tables import markdown
from synthetic.recursion import figures
from synthetic.recursion.presets import RecursionConfig
from synthetic.recursion.sentences import known
from synthetic.recursion.statements import by_depth
from synthetic.recursion.summary import Row
from synthetic.statements import Statement

WIDTH = 118  # of running text
_HOW_TO_READ = """\
Recursive CEM MLPs learn functions drawn from Gaussian processes. Everything but the model is shared: the functions,
their points and noise, the batches, and the initial values of every parameter that two models have in common.

- **Models.** *CEM* takes T steps of size 1. *Steps sum to 1*: steps of size 1/T. *D = inputs*: no lift, the state has
  as many dimensions as the input. *Norm inside*: RMSNorm before each step. *Printed low-rank P*: as the paper prints
  it, which need not be positive definite. *MLP, FLOPs of CEM*: an untied MLP so wide that it costs as much. *MLP
  reused*: an untied MLP applied T times. *A/A*: CEM once more, with other first weights and batches. *T drawn*: one
  model, with T drawn for each batch. **T'** is the number of steps at test time.
- **RMSE** is `sqrt(mean((m - mu)^2 + v))`, the expected error of predictions `m` given the data, with the exact
  posterior mean `mu` and variance `v`. No predictor has a smaller root of the mean
  squared error over functions than the last row, the **floor**; on a single function its RMSE may be smaller.
  *Observed* RMSE is measured on the noise-free function that was drawn. **Excess** is `sqrt(mean((m - mu)^2))`; it is
  0 at best. **Gap closed** is the share of the gap between ridge regression and the floor that the model closes.
- Every contender is trained at each learning rate of the study. Points held out of its training set select the
  learning rate and the training step whose weights are used. "(edge)" means that the best learning rate was the
  smallest or the largest one tried.
- **Ratio** is the geometric mean, over functions, of a model's RMSE divided by that of its family's smallest T (or by
  that of plain CEM if the family has one member), with a 95 % interval of Student's t on the logarithms. The **p**
  values are two-sided: the t test, corrected by Holm's method for all rows of a table, and sign flips. **Detectable**
  is the relative difference that such a test finds in 80 % of studies.
- **Verdict**: better or worse if the corrected p is below 0.05{few}; equivalent if the 90 % interval lies within
  {margin:.0%}; otherwise inconclusive. A run that diverged is counted, and its row shows no mean.
- FLOPs are those of one prediction, counted as the operations run."""

_NOT_SAID = """\
## What this does not say

- The paper gives neither the kernel parameters nor the sizes, the optimiser or the number of points of its synthetic
  study. This is a study of the same question, not a replication of the paper's figures.
- There is one recipe, tuned in its learning rate only, at one size of model and of training set. With fewer training
  points, deeper recursion fits the noise sooner, and a smaller T is best.
- The intervals cover other functions from the same prior, each with its own initial weights. They do not cover other
  priors, widths or recipes.
- "Undecided" means that this number of functions is too small to tell, not that there is no difference."""


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
    if (dial := figures.dial(studied)) is not None:
        drawn = {"dial": ("One model for all depths against a model for each", dial), **drawn}
    files = {path.with_name(f"{path.stem}-{name}.svg"): text for name, (_, text) in drawn.items()}
    pictures = [f"![{title}]({path.stem}-{name}.svg)" for name, (title, _) in drawn.items()]
    few = f", or with fewer than {FEWEST} functions if the interval excludes 1" if config.seeds < FEWEST else ""
    parts = [
        f"# {_title(studied, dial is not None)}",
        "## What it shows",
        textwrap.fill(" ".join(known(studied)), WIDTH, break_on_hyphens=False),
        pictures[0],
        "## The paper's statements",
        _statements(read),
        "A ratio compares the errors of two models; *worse* says that the first has the larger one.",
        "## How to read it",
        f"Generated by `{command}`; the same command generates the same page.",
        _HOW_TO_READ.format(few=few, margin=MARGIN),
        *pictures[1:],
        markdown(tables),
        _NOT_SAID,
    ]
    for file, text in {**files, path: "\n\n".join(parts) + "\n"}.items():
        write_text(file, text)
    return [*files, path]


def _title(studied: Mapping[str, Sequence[Row]], dial: bool) -> str:
    if dial:
        return "One model for all depths, on functions"
    if any(by_depth(rows, "CEM, norm inside, steps sum to 1") for rows in studied.values()):
        return "Recursion depth at three step sizes, with a norm inside and without"
    return "Recursion depth on functions of known difficulty"


def _statements(read: Sequence[Statement]) -> str:
    table = Table("", ("the paper", "here", "reading"), [[s.text, s.found, s.reading] for s in read])
    return markdown([table]).partition("\n\n")[2]
