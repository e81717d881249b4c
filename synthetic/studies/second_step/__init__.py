"""Where a second step pays: every model is tuned separately by the same rule, then judged on other text.

The design, which `python -m synthetic language second-step` carries out:

* **Question.** Do T steps inside a layer need fewer bits per byte than one, at equal tokens? A model with T = 2 must
  be better than T = 1 *and* than T = 1 with a step T times as long: a longer update alone can look like a gain from
  recursion. Because it must be better than both, nobody has to choose between the two after seeing the data.
* **Recipe.** In every model embeddings are N(0, 1) and all layers N(0, 1/D): with embeddings of N(0, 1/D) the first
  update would be several times as long as the stream it is added to, and the second step would be computed far from
  N(h). Each step size (1, 1/T, T, learned from 1 or 1/T) is a separate row; the learning rate is tuned for each row.
* **Tuning** (`engine.rates`). Rates double. At least four are tried in short trainings; the best and its two
  neighbours in trainings twice as long. At both lengths further rates are tried until the best has a worse neighbour
  on each side, so the optimum never lies at an edge. The chosen rate is the lowest point of the parabola through the
  three, over log2 of the rate. Every row follows this rule, and all its trainings are published.
* **Judging.** Full length, seeds not used in tuning, and the other half of the validation part. Rows are paired by
  seed: the same batches, and the same initial value of every parameter that two models share.
* **Controls** (`rows`). T = 1 with eta = T; T = 1 with a wider MLP, so that training costs as much as T = 2; T = 1
  applied twice (plain reuse); and T = 1 again with other initial weights, tuned anew, which should come out equal
  (A/A).
"""

from __future__ import annotations

from synthetic.studies.engine.study import Study
from synthetic.studies.second_step.conclusion import read
from synthetic.studies.second_step.rows import rows

STUDY = Study("second-step", "does a second step pay? every row is tuned by itself", rows, read)
