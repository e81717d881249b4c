"""Commands abused at random, and one rule for all of them: see `abuses`."""
