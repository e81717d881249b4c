"""What one would do without cemverify: four tests by hand, asked about the same layers as `cemverify check`.

They were written from the contract, the mathematics and the reference alone, before their author had read a property,
a mutant or a blind fault. Each is a file of `test_` functions, as pytest runs them, which take the layer.
"""
