"""Implementations to learn from, each a correct one."""
