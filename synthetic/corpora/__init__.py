"""Corpora: text, or a source with known entropy, tokenised once and cut into the same batches for all models.

sources      where documents come from: the standard library, files and folders
chains       sources with known entropy, drawn from a seed: Markov chains, hidden Markov models
hub          Hugging Face datasets, streamed; needs the extra "hub"
tokenisers   bytes, symbols, or a tokeniser of the tokenizers library
tokens       tokens on disk, with their checksums, and the windows of them that a step trains on
corpus       turns a source and a tokeniser into files of tokens, once
choice       which corpus, and where corpora are stored: shared by command line, cells and workers
yardsticks   what simpler models reach on the same tokens
"""
