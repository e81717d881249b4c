"""What a fixed memory costs: two steps on one memory, compared with two steps that each read it anew.

A CEM layer keeps its memory during the descent. A layer that is applied twice reads it anew, but otherwise takes the
same steps. In `second_step` the rows differ in both memory and step size; here these vary one at a time, with the
same P and the same positions for all layers:

* **Rows** (`rows`). Two steps with {a fixed, a refreshed} memory x steps of {1/2, 1}; for each size, one step as long
  as both together; other uses of the FLOPs: T = 1 trained for longer, or wider; and Llama.
* **Tuning.** At half and at full length with three seeds; the rate is the parabola's minimum, not rounded.
* **One look.** The plan, seeds included, has a name that every judged training carries. Nothing is compared until the
  last of them is finished. docs/fixed-memory.md has the plans, and was written before the first training.
"""

from __future__ import annotations

from synthetic.studies.engine.study import Study
from synthetic.studies.fixed_memory.conclusion import read
from synthetic.studies.fixed_memory.rows import rows

STUDY = Study(
    "fixed-memory",
    "what does a memory cost that stays fixed while steps are taken?",
    rows,
    read,
    replaced="full",
    seeds=16,
    P="low rank",
    positions="alibi",
    tuning=1,
    tuning_seeds=3,
    rounded=False,
    registered=True,
)
