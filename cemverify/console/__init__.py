"""What a user types and reads: arguments, one sentence per mistake, streams, text made safe for a terminal."""
