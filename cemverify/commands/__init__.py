"""The commands of the command line, one file each.

A command is a module with `DESCRIPTION` and perhaps `EPILOG`, `add_arguments(parser)`, and `run(options)`,
which returns the exit code.
"""
