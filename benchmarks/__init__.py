"""Benchmarks: ratios of time, measured side by side, with ratios of FLOPs. `python -m benchmarks --help`."""
