"""The three things that CI compares a run with: a pinned catalogue, known violations and a baseline."""
