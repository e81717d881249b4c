"""Loss curves, step by step: beside those of somebody else's implementation, and beside those on file."""
