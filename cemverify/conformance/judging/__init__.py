"""From answers to verdicts: the engine, its controls, and the name of the part that is wrong."""
