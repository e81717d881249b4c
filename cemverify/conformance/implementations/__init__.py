"""What is judged: the contract, what may go wrong in a call, adapters, and the two implementations that are right."""
