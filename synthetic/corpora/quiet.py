"""Silences the Hugging Face libraries, which log the errors that they also raise."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def hushed(*libraries: str) -> Iterator[None]:
    """Suppresses the log lines of these libraries."""
    # imported, as a library sets its own level the first time that it is used
    modules = [import_module(f"{library}.utils.logging") for library in libraries]
    before = [module.get_verbosity() for module in modules]
    for module in modules:
        module.set_verbosity(logging.CRITICAL + 1)
    try:
        yield
    finally:
        for module, verbosity in zip(modules, before, strict=True):
            module.set_verbosity(verbosity)
