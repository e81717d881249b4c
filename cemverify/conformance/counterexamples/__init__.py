"""Counterexamples to pass on: files that can be judged again, and scripts that run on their own."""
