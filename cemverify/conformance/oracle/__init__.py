"""The right answer, how far roundoff may move it, and the comparison of the two sides."""
