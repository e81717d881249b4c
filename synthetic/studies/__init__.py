"""Studies: rows, replicates, paired comparisons and readings; each conducted by `engine`."""
