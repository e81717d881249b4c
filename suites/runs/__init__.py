"""What resumable computations are held to."""
