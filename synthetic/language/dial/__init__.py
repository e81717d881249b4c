"""Depth as a dial in language models: one set of parameters, and T chosen at test time.

A model that is trained with T steps is good with T and no other number. One that is trained with T drawn for each
batch is set beside models that were trained for each T, on text or on chains whose entropy is known.
"""
