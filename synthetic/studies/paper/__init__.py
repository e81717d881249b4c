"""The paper's language experiments, at a size that fits the machine."""
