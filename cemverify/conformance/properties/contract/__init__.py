"""The contract of a CEM implementation, asked of every function over mixed options (docs/contract.md)."""
