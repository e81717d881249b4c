"""Training one language model: recipe, machine, checkpoints, and what is measured along the way."""
