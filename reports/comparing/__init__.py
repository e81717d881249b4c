"""Two sets of results beside each other: what got worse, what changed, and what cannot be compared."""
