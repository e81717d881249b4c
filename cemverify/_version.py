"""The version of the suite; every result file records it."""

VERSION = "0.3.0"
