"""Proofs of the reports."""
