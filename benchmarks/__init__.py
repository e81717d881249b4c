"""Benchmarks: ratios of time measured side by side, beside the ratio of FLOPs. `python -m benchmarks --help`."""
