"""A module whose import does not end."""

import os
import time

while os.environ.get("PYTEST_CURRENT_TEST"):
    time.sleep(1)
