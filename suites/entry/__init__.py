"""The way into every command: bad input, damaged files, hostile text, odd environments."""
