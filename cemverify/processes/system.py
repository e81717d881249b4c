"""Whether to use what only Linux offers: forks, /proc, prctl, limits on memory.

CEMVERIFY_PORTABLE=1 says no on Linux too, to run and test there what other systems run.
"""

from __future__ import annotations

import os
import sys

LINUX = sys.platform == "linux" and os.environ.get("CEMVERIFY_PORTABLE", "") in ("", "0")
