"""What the right answer is, how far roundoff may move it, and the comparison of two sides."""
