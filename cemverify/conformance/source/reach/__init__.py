"""Which lines of an implementation ran while it answered, and for which properties."""
