"""What a person types and reads: arguments, one sentence for every slip, streams, text made safe for a terminal."""
