"""The paper's claims, judged: what the properties, derivations and counterexamples come to."""
