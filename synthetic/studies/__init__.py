"""Studies: rows, replicates, paired comparisons and readings; `engine` conducts each."""
