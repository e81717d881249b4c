"""Listeners present the events of a run, each for one kind of reader."""
