"""What tests in many packages need: judged implementations, records of runs, commands, processes."""
