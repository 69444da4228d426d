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
"""More than this many are not kept open unless a setting says so: to open a file again costs less than a sync."""
READ_MAX = 256

log = structlog.get_logger("server")


def raise_limit() -> None:
    """Take what the system gives."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = min(DESCRIPTORS_WANTED, hard) if hard != resource.RLIM_INFINITY else DESCRIPTORS_WANTED
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            log.debug("descriptors.raised", limit=wanted, before=soft)


class LogFiles(NamedTuple):
    """How many files of logs are kept open."""

    written: int
    read: int

    @classmethod
    def of(cls, files_max: int | None, limit: int | None = None) -> Self:
        """What a setting says, or half of the limit, by default the process's own."""
        if files_max is None:
            if limit is None:
                limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
            files_max = LOG_FILES_MAX if limit == resource.RLIM_INFINITY else min(LOG_FILES_MAX, limit // 2)
        read = min(READ_MAX, max(1, files_max // 4))
        return cls(max(1, files_max - read), read)
