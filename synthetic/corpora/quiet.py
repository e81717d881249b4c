"""The Hugging Face libraries log what they also raise; one trouble is one sentence."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module


@contextmanager
def hushed(*libraries: str) -> Iterator[None]:
    """The log lines of these libraries are not shown meanwhile."""
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
