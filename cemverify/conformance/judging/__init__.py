"""From outputs to verdicts: the engine, its controls, and naming the part that is wrong."""
