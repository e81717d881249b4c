"""The two things that CI compares a run with: known violations and a baseline."""
