"""The version of the suite; every result file records it."""

VERSION = "0.2.0"
