"""The whole broker as a target: streams of logged-in clients go over a socket into links, cache, partitions
and logs.

The broker runs in a thread, once per process. A case fails if the broker logs an error of its own or leaves
the client without an answer.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import socket
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from random import Random
from typing import Any

import structlog

from storage.disk import LocalDisk
from tests.fuzz.mutate import cuts
from tests.support import raw_amqp as raw
from tests.support.broker_process import queue
from tests.support.broker_thread import BrokerThread
from tests.support.raw_amqp import ConnectionEnded, RawConnection

ENDS_WITHIN_S = 5.0
_errors: list[str] = []


def _note_errors(_: Any, method: str, event: MutableMapping[str, Any]) -> str:
    """A structlog processor that keeps the broker's own errors and drops everything else."""
    if method in ("error", "exception", "critical"):
        _errors.append(repr(structlog.processors.format_exc_info(None, method, event)))
    raise structlog.DropEvent


@functools.cache
def _port() -> int:
    """Start the broker. Its messages expire quickly, so that countless cases leave nothing behind."""
    structlog.configure(processors=[_note_errors])
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    queues = [queue("queue", DefaultMessageTimeToLive="PT1S", LockDuration="PT5S")]
    return stack.enter_context(BrokerThread(folder, queues, LocalDisk(), fsync="never")).addresses.amqp_port


def broker(data: bytes, random: Random) -> None:
    """Send one client's stream, from the AMQP header to its end."""
    with RawConnection(_port()) as connection:
        with contextlib.suppress(ConnectionEnded, OSError):
            connection.send(raw.sasl_plain())
            for piece in cuts(data, random):
                connection.send(piece)
            connection.socket.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionEnded):
            while True:
                connection.read_bytes(1, ENDS_WITHIN_S)
    errors, _errors[:] = list(_errors), []
    assert not errors, "\n".join(errors)
