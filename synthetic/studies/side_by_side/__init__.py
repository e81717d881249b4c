"""Llama and CEM on the same tokens, each trained once: what `language train` trains, and when a run passes."""
