"""Result files: the envelope of everything that is measured, what made it, its tables and its statistics."""
