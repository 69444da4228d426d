"""Limit how many files and connections the process may have open, and divide them between logs and clients.

Files and connections share one limit of the system. The number of open log files is bounded, so a broker with
many more partitions than descriptors works and has room for its clients. The number of clients is bounded
too, so a log can always open a file.
"""

from __future__ import annotations

import contextlib
import resource
import sys
from typing import NamedTuple, Self

import structlog

from broker.frontend.room import BEING_REFUSED_MAX
from broker.http.server import SPARE_CONNECTIONS
from broker.settings.settings import Settings
from storage import store_defaults

DESCRIPTORS_WANTED = 65_536
"""The limit that suits all but unusual settings."""
LOG_FILES_MAX = 8_192
"""The most log files kept open unless a setting says otherwise: opening a file again costs less than a
sync."""
LOG_FILES_MIN = 16
READ_MAX = store_defaults.OPEN_FILES_MAX
OTHERS = 36
"""Listeners, event loop and lock, about 16, and files that storage threads open for a moment."""

log = structlog.get_logger("server")


def limit_for(settings: Settings) -> int:
    """A limit under which these settings count as they are."""
    files = max(LOG_FILES_MAX, settings.log_files_max or 0)
    http = settings.http_connections_max
    clients = max(settings.connections_max + http, 4 * http)
    others = OTHERS + BEING_REFUSED_MAX + SPARE_CONNECTIONS
    return max(DESCRIPTORS_WANTED, 2 * files, files + clients + others)


def raise_limit(wanted: int) -> None:
    """Raise the process's limit to the wanted one, as far as the system permits."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            log.debug("descriptors.raised", limit=wanted, before=soft)


class Shares(NamedTuple):
    """How many descriptors each use may take at a time."""

    written: int
    """Log files open for writing."""
    read: int
    """Log files open for reading."""
    amqp: int
    """Connections over AMQP's own ports; the number of WebSocket connections has the same limit."""
    http: int

    @classmethod
    def of(cls, settings: Settings, limit: int | None = None) -> Self:
        """Shares according to the settings, as far as `limit` allows; `limit` defaults to the process's
        own."""
        if limit is None:
            limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        if limit == resource.RLIM_INFINITY:
            limit = sys.maxsize
        wanted = settings.log_files_max
        files = max(
            LOG_FILES_MIN, min(LOG_FILES_MAX, limit // 3) if wanted is None else min(wanted, limit // 2)
        )
        if wanted is not None and files < wanted:
            log.warning("descriptors.log_files_reduced", limit=limit, wanted=wanted, log_files_max=files)
        read = min(READ_MAX, files // 4)
        room = limit - files - OTHERS - BEING_REFUSED_MAX - SPARE_CONNECTIONS
        http = max(1, min(settings.http_connections_max, room // 4))
        amqp = max(1, min(settings.connections_max, room - http))
        if (amqp, http) != (settings.connections_max, settings.http_connections_max):
            log.warning(
                "descriptors.few",
                limit=limit,
                advice="Fewer clients can connect than the settings permit. Raise the limit of open files "
                "(ulimit -n), or lower PARTIBUS_CONNECTIONS_MAX and PARTIBUS_HTTP_CONNECTIONS_MAX.",
                amqp_connections_max=amqp,
                http_connections_max=http,
                log_files_max=files,
            )
        return cls(files - read, read, amqp, http)
