"""What the commands of the command line do, one file each; what they can be given is in `cemverify.options`.

A command is a module with `run(options)`, which returns the exit code.
"""
