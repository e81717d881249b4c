"""Blind rounds: faults by authors who had read the contract and the mathematics, but none of our properties.

Our own mutants are killed because each was written together with the property that kills it. Blind rounds show what a
pass is worth to somebody else. Each round is a folder in `data`: its author's instructions, faults as patches of
correct `bases`, and the results. The bases are CEM functions that rounds share, or energy layers in the folder of the
round. Faults and bases are kept as their authors wrote them, as text whose digests are in `data/sha256.txt`. No
property may be made for one of them alone.

`python -m suites.blind ask 1` tests a round, `python -m suites.blind page` writes docs/blind-rounds.md, and
`cemverify check suites.blind.faults:NAME` checks one of the faults.
"""
