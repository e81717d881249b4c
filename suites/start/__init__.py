"""What somebody starts from."""
