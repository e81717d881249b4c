"""Makes the parts of the documentation that nobody writes by hand: contents, references, pictures, the notebook."""
