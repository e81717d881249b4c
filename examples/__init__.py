"""Correct implementations to learn from."""
