"""The proofs: pytest for everything this repository claims."""
