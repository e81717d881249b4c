"""What each command can be given: its help and its options, one file each; what it does is in `cemverify.commands`.

A file has `DESCRIPTION` and perhaps `EPILOG`, and `add_arguments(parser)`. Nothing here imports torch, so that
`--help`, a complaint about an option and the completions of a shell come at once.
"""
