"""The synthetic bench: studies that measure what recursion depth and energies buy. `python -m synthetic --help`."""
