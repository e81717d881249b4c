"""The contract of a CEM implementation, tested for every function over mixed options (docs/contract.md)."""
