"""Generates what is not written by hand: contents, references, pictures, and the files of the catalogue."""
