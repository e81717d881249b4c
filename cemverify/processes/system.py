"""Whether what only Linux gives may be used: forks, /proc, prctl, limits on memory.

CEMVERIFY_PORTABLE=1 says no on Linux too, so that what other systems run can be run and tested there.
"""

from __future__ import annotations

import os
import sys

LINUX = sys.platform == "linux" and os.environ.get("CEMVERIFY_PORTABLE", "") in ("", "0")
