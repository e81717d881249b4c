"""Reads an implementation's own code: which lines were reached, and which numbers stand in it."""
