"""The catalogue of properties: what each one says, and which version introduced it. Read without torch."""
