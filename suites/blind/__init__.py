"""Blind rounds: faults written by authors who had read the contract and the mathematics, and none of our properties.

Our own mutants are killed because each was written beside the property that kills it. These say what a green is worth
to somebody else. Each round is a folder in `data`: the instructions that its author had, faults as patches of correct
`bases`, and what was found. The bases are functions of CEM that rounds share, or energy layers in the folder of the
round. Faults and bases are kept as their authors wrote them, as text whose digests are in `data/sha256.txt`, and no
property may be made for one of them alone.

`python -m suites.blind ask 1` asks a round, `python -m suites.blind page` writes docs/blind-rounds.md, and
`cemverify check suites.blind.faults:NAME` checks one of the faults.
"""
