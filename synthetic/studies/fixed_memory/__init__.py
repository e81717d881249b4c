"""What a fixed memory costs: two steps on one memory, beside two steps that each read it anew.

A layer of CEM keeps its memory while it descends. A layer that is applied twice reads it anew, and takes the same
steps otherwise. In `second_step` the rows differ in both memory and length; here they vary one at a time, with the
same P and the same positions whatever the layer:

* **Rows** (`rows`). Two steps {with a fixed memory, with a refreshed one} x {of 1/2, of 1}; beside each length, one
  step that is as long as both; and what else the FLOPs buy: T = 1 trained for longer, or wider. Llama.
* **Tuning.** At half and at the full length with three seeds; the rate is the parabola's minimum, not rounded.
* **One look.** The plan, seeds included, has a name that every judged training carries. Until the last of them is
  there, nothing is compared. docs/fixed-memory.md has the plans, and was there before the first.
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
