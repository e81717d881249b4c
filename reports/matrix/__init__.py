"""Many implementations beside each other, from the result files of other people's CI."""
