"""Calls to an implementation: fresh copies, what a call may change, and derivatives of a black box."""
