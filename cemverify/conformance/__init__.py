"""What it means for an implementation of CEM layers to be right, and the evidence."""
