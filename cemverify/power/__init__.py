"""Judges the judge: one-fault implementations, how often they are found, and false alarms on right ones."""
