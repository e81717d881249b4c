"""The synthetic bench: studies of what recursion depth and energies buy. See `python -m synthetic --help`."""
