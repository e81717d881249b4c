"""Rehearses a GPU without one: every path of the reference on fake tensors, which are on "cuda" and hold no numbers.

Fake tensors have a device, a dtype and a shape, and fail as on a device: for operands on two devices, incompatible
dtypes, shapes that depend on values. Places where the CPU waits for the GPU are counted. Run `python -m pytest
benchmarks/rehearsal` separately: its stand-in for a GPU must be loaded before torch.
"""
