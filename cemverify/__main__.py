"""`python -m cemverify` is `cemverify`."""

import sys

from cemverify.cli import main

if __name__ == "__main__":
    sys.exit(main())
