"""What is judged: the contract, the faults of a call, adapters, and two correct implementations."""
