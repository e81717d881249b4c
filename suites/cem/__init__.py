"""The reference implementation: what it computes, and the mathematics it has to obey."""
