"""What tests of many rooms need: judged implementations, records of runs, commands, processes."""
