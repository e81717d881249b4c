"""Compares two sets of results: what got worse, what changed, and what cannot be compared."""
