"""The commands of the command line, one file each, called as the command is.

A command is a module with `DESCRIPTION` and perhaps `EPILOG`, `add_arguments(parser)`, and `run(options)`, which
returns the exit code. Nothing at the top of these files imports torch, so that `--help`, a complaint about an option
and the completions of a shell come at once; `run` imports what it needs, under `slow_imports`.
"""
