"""Listeners: what becomes of a run's events. Each renders them for one reader."""
