"""Gaussian-process tasks whose optimum is known."""
