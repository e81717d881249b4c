"""`cemverify completion`: the shell code for completion with Tab."""

from __future__ import annotations

import argparse

DESCRIPTION = """\
Prints the shell code that completes commands, options, ids of properties and names of implementations with the Tab
key.
"""

EPILOG = """\
to try it in this shell, or for good, as a line in the file that your shell reads when it starts:
  bash, in ~/.bashrc                      eval "$(cemverify completion bash)"
  zsh, in ~/.zshrc after compinit         eval "$(cemverify completion zsh)"
  fish, in ~/.config/fish/config.fish     cemverify completion fish | source
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `cemverify completion`."""
    parser.add_argument("shell", choices=("bash", "zsh", "fish"), help="the shell")


def run(options: argparse.Namespace) -> int:
    """Runs `cemverify completion` with parsed arguments; returns the exit code."""
    from argcomplete.shell_integration import shellcode

    print(shellcode(["cemverify"], shell=options.shell))
    return 0
