"""Corpora: text, or a source whose entropy is known, tokenised once and cut into the same batches for everybody.

sources      where documents come from: the standard library, files and folders
chains       sources drawn from a seed whose entropy mathematics gives: Markov chains, hidden Markov models
hub          Hugging Face datasets, streamed; needs the extra "hub"
quiet        silences libraries that log what they also raise
tokenisers   bytes, symbols, or a tokeniser of the tokenizers library
shards       tokens on disk: header, checksum, written aside
corpus       a source and a tokeniser made into shards, once
batches      which windows a step trains on: a pure function of seed, step and rank
yardsticks   what simpler models reach on the same tokens
"""
