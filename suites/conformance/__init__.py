"""The verifier, proved: what it finds, what it must not, and how it says so."""
