"""Counterexamples to pass on: files that can be judged again, and stand-alone scripts."""
