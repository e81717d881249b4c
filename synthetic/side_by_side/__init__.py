"""Llama and CEM side by side: what is trained, what is measured, and when that passes."""
