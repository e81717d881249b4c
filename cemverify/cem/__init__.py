"""The reference implementation of Causal Energy Minimization. Needs torch and NumPy only.

What a layer minimises is an *energy*; how it does so is a *descent*. A layer is the two together.
"""
