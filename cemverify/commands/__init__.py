"""The commands of the command line, one file each, with the command's name.

A command is a module with `DESCRIPTION`, optionally `EPILOG`, `add_arguments(parser)`, and `run(options)`, which
returns the exit code. No such file imports torch at top level, so that `--help`, errors about options
and a shell's completions are quick; `run` imports what it needs, under `slow_imports`.
"""
