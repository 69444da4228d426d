"""How the broker logs: structlog with fixed event names and values, one line per event, never one per
message.

Lines are readable text in a terminal, and JSON elsewhere. Standard-library loggers (aiohttp, asyncio) produce
the same lines. The log goes to stderr, because stdout belongs to commands.
"""

from __future__ import annotations

import ipaddress
import logging
import sys

import structlog

from broker.settings.settings import DEVELOPMENT_KEY, LogFormat, LogLevel, Settings


def configure_logging(log_format: LogFormat | None, level: LogLevel) -> None:
    """Set up structlog and the standard library's logging. Safe to call again."""
    console = log_format == "console" or (log_format is None and sys.stderr.isatty())
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.StackInfoRenderer(),
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    if console:
        # Plain tracebacks: the pretty ones print local variables, which may hold keys.
        last: list[structlog.typing.Processor] = [
            structlog.dev.ConsoleRenderer(
                colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
            )
        ]
    else:
        last = [structlog.processors.format_exc_info, structlog.processors.JSONRenderer()]
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())


def warn_development_key(settings: Settings) -> bool:
    """Warn when other machines can reach the broker with the public development key. Returns whether it
    warned."""
    if settings.sas_key_file or settings.sas_key != DEVELOPMENT_KEY or is_loopback(settings.host):
        return False
    structlog.get_logger("broker").warning(
        "development_key.exposed",
        host=settings.host,
        key_name=settings.sas_key_name,
        advice="The key SAS_KEY_VALUE is public: set PARTIBUS_SAS_KEY, or listen on 127.0.0.1 only.",
    )
    return True


def is_loopback(host: str) -> bool:
    """Whether only this machine can connect to the address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.casefold() == "localhost"
