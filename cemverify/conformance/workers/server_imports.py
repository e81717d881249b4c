"""What the server of workers has before it forks the first: the judge, and what would cost each of them a moment.

Imported by that server alone (see `nursery`).
"""

from __future__ import annotations

import gc
from importlib import import_module

from cemverify.console.guard import importing

with importing():
    from cemverify.conformance.questions.hypothesis_draws import get_ready
    from cemverify.conformance.workers import judge

    import_module("torch.fx.experimental.symbolic_shapes")  # torch does at a process's first backward pass
    get_ready()

__all__ = ["judge"]

gc.freeze()  # or each worker's collector would look through all that is imported, and copy its pages
