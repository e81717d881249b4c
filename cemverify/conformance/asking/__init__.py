"""One call of an implementation: its copies, what it may change, and the derivatives of a black box."""
