"""What the synthetic bench is held to."""
