"""Makes what nobody writes by hand: contents, references, pictures, and the files of the catalogue."""
