"""Worker processes that may hang, crash or run out of memory without ending the run."""
