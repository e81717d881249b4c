"""Processes, files and devices: how many workers, how they start and end, files that exist whole or not at all."""
