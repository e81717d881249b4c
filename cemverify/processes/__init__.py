"""Processes, files and devices: how many workers, how they start and end, and files that are never half-written."""
