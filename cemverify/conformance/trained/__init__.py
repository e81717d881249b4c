"""A trained layer on what its model feeds it: weights from a checkpoint, states and memories from real tokens."""
