"""`cemverify completion`: the shell code of the Tab key."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode


def run(options: argparse.Namespace) -> int:
    """`cemverify completion`."""
    print(shellcode(["cemverify"], shell=options.shell))
    return 0
