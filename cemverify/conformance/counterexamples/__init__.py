"""Counterexamples to hand on: files that can be asked again, and scripts that stand alone."""
