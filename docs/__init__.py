"""The documentation: pages, and what makes the parts of them that nobody writes by hand."""
