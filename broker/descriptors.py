"""How many files the process may have open, and how many of them its logs take.

Connections and files share one limit of the system. What the logs keep open is bounded, so that a broker with many more partitions
than descriptors works, and has room left for its clients.
"""

from __future__ import annotations

import contextlib
import resource
from typing import NamedTuple, Self

import structlog

DESCRIPTORS_WANTED = 65_536
LOG_FILES_MAX = 8_192
"""The most that are kept open unless a setting says otherwise: opening a file again costs less than a sync."""
READ_MAX = 256

log = structlog.get_logger("server")


def raise_limit() -> None:
    """Raise the process's limit as far as the system permits, up to DESCRIPTORS_WANTED."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(DESCRIPTORS_WANTED, hard) if hard != resource.RLIM_INFINITY else DESCRIPTORS_WANTED
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            log.debug("descriptors.raised", limit=wanted, before=soft)


class LogFiles(NamedTuple):
    """How many log files are kept open, for writing and for reading."""

    written: int
    read: int

    @classmethod
    def of(cls, files_max: int | None, limit: int | None = None) -> Self:
        """By the setting `files_max`, or half of `limit`, which is the process's own by default."""
        if files_max is None:
            if limit is None:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            files_max = LOG_FILES_MAX if limit == resource.RLIM_INFINITY else min(LOG_FILES_MAX, limit // 2)
        read = min(READ_MAX, max(1, files_max // 4))
        return cls(max(1, files_max - read), read)
