"""Makes what nobody writes by hand: contents, references, pictures, the notebook, and the files of the catalogue."""
