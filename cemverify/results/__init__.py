"""Result files: the envelope around every measurement, what made it, its tables and its statistics."""
