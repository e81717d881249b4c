"""`cemverify completion`: what makes a shell complete."""

from __future__ import annotations

import argparse

from argcomplete.shell_integration import shellcode


def run(options: argparse.Namespace) -> int:
    """`cemverify completion`."""
    print(shellcode(["cemverify"], shell=options.shell))
    return 0
