"""Where a second step pays: every model tuned by itself by the same rule, then judged on other text.

The design, which `python -m synthetic language second-step` carries out:

* **Question.** Do T steps inside a layer need fewer bits per byte than one, at equal tokens? A model with T = 2 gains
  only if it is better than T = 1 *and* than T = 1 with a step T times as long: a longer update alone can look like a
  gain of recursion. It must be better than both, so no choice between the two has to be made from the data.
* **Recipe.** Embeddings are N(0, 1) and all layers N(0, 1/D), in every model alike: with embeddings of N(0, 1/D) the
  first update is several times as long as the stream it is added to, and the second step is asked far from N(h). The
  step size is a row of its own (1, 1/T, T, learned from 1 or 1/T); the learning rate is tuned row by row.
* **Tuning** (`engine.rates`). Rates double. All of at least four are tried in a short training; the best of them and
  its two neighbours in one twice as long. At both lengths further rates are tried until the best has a worse
  neighbour on each side, so that the optimum never lies at an edge. The rate is the lowest point of the parabola
  through the three, over log2 of the rate. Every row follows this rule; every training of it is published.
* **Judging.** Full length, seeds that tuned nothing, and the other half of the validation part. Rows are paired by
  seed: the same batches, and the same first value of every parameter that two models share.
* **Controls** (`rows`). T = 1 with eta = T; T = 1 with an MLP so wide that training costs what T = 2 costs;
  T = 1 applied twice (plain reuse); and T = 1 again with other first weights, tuned anew, which should come out equal
  (A/A).
"""

from __future__ import annotations

from synthetic.studies.engine.study import Study
from synthetic.studies.second_step.conclusion import read
from synthetic.studies.second_step.rows import rows

STUDY = Study("second-step", "does a second step pay? every row is tuned by itself", rows, read)
