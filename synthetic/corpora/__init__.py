"""Corpora: text, or a source with known entropy, tokenised once and cut into the same batches for all models.

sources      where documents come from: the standard library, files and folders
chains       sources with known entropy, drawn from a seed: Markov chains, hidden Markov models
hub          Hugging Face datasets, streamed; needs the extra "hub"
quiet        silences libraries that log what they also raise
tokenisers   bytes, symbols, or a tokeniser of the tokenizers library
tokens       tokens on disk: .npy files, memory-mapped, with their checksums
corpus       turns a source and a tokeniser into files of tokens, once
choice       which corpus, and where corpora are stored: shared by command line, cells and workers
batches      which windows a step trains on: a pure function of seed, step and rank
yardsticks   what simpler models reach on the same tokens
"""
