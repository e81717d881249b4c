"""The judge, judged: every mutant is killed for its cause, and no correct implementation is called wrong."""
