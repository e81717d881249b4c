"""A module whose import ends the interpreter."""

import os

if os.environ.get("PYTEST_CURRENT_TEST"):
    os._exit(9)
