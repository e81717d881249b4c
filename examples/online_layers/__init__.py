"""Layers whose every token is a step, each a file that reads like its paper."""
