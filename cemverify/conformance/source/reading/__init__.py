"""What an implementation's own files say: their lines, branches and numbers. Nothing here runs them."""
