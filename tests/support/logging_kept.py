"""The process's logging as it was before: for tests that configure it, which the tests after them must not
notice."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator

import structlog


@contextlib.contextmanager
def logging_kept() -> Iterator[None]:
    """Put logging back at the end of the block: the standard library's handlers and level, and structlog's
    defaults."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    try:
        yield
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        structlog.reset_defaults()
