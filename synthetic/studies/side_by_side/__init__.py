"""Llama and CEM on the same tokens, each trained once: what `language train` trains, and when that passes."""
