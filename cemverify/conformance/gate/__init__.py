"""What is accepted for now, and what was there before: the two things that CI compares a run with."""
