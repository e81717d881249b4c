"""Corpora: text, or a source whose entropy is known, tokenised once and cut into the same batches for everybody.

sources      where documents come from: the standard library, files and folders
chains       sources drawn from a seed whose entropy mathematics gives: Markov chains, hidden Markov models
hub          Hugging Face datasets, streamed; needs the extra "hub"
quiet        silences libraries that log what they also raise
tokenisers   bytes, symbols, or a tokeniser of the tokenizers library
tokens       tokens on disk: .npy files, memory-mapped, with their checksums
corpus       a source and a tokeniser made into files of tokens, once
choice       which corpus, and where corpora lie: what a command line, a cell and a worker agree on
batches      which windows a step trains on: a pure function of seed, step and rank
yardsticks   what simpler models reach on the same tokens
"""
