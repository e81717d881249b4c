"""The fast paths with our kernels on the CPU, in Triton's interpreter; for `cemverify check`, or a test.

cemverify check suites.cem.interpreted:mine --dtype float32
"""

from __future__ import annotations

import os

from cemverify.cem import blocked
from cemverify.conformance.implementations.fast import fast

os.environ["TRITON_INTERPRET"] = "1"  # before the kernels are imported
blocked.ROWS_ON = {"cpu"}
mine = fast
