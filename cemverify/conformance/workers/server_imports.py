"""What the server of workers loads before it forks the first: the judge, and what would delay each of them.

Imported only by that server (see `nursery`).
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

gc.freeze()  # otherwise each worker's garbage collector would visit all that is imported, and copy its pages
