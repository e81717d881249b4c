"""Rehearses a GPU without one: every path of the reference on tensors that are on "cuda" and hold no numbers.

Fake tensors have a device, a dtype and a shape, and refuse what a device refuses: operands on two devices, dtypes
that do not fit, shapes that follow from values. What only takes time is counted: places where the CPU waits for the
GPU. `python -m pytest benchmarks/rehearsal` is run by itself, since its stand-in for a GPU comes before torch.
"""
