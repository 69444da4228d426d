"""Restores the process's logging after tests that configure it, so that later tests are unaffected."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import structlog


@contextlib.contextmanager
def logging_kept() -> Iterator[None]:
    """Restore logging at the end of the block: the standard library's handlers and level, and structlog's
    defaults.
    """
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
