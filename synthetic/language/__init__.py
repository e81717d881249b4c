"""The language bench: small language models, Llama and CEM, on the same tokens in the same order.

training     one model: recipe, machine, checkpoints, and what is measured along the way
contenders   several models side by side: presets, results, and when a run passes
losses       loss curves step by step: beside those of somebody else's layers, and beside those on file
paper        the paper's language experiments, with several seeds: cells of a store, statistics, statements, pages
commands     `python -m synthetic language train | study | compare`

`contenders` and `paper` know nothing of each other. Below `commands` nothing knows of a command line: frozen
configurations go down, results come up. On the CPU a run repeats bit for bit; on a GPU, where sums are taken in any
order, it does not.
"""
