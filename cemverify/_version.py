"""The version of the suite; every result file records it."""

VERSION = "1.1.0"
