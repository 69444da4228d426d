"""The connections of this process, kept between the tasks that Spark runs in it.

Spark reuses its workers, so a task finds the connection of the one before. A worker waits between tasks
without running our code, so the broker may have closed an idle connection: it is looked at before it is used
again. Connections are never shared with a process that was forked.
"""

from __future__ import annotations

import os
import time

from pyspark_partibus.client.connection import Connection
from pyspark_partibus.client.requests import put_token
from pyspark_partibus.client.tokens import audience_of, has_tokens, token_for
from pyspark_partibus.endpoint import Endpoint
from pyspark_partibus.errors import Unavailable

_connections: dict[tuple[int, Endpoint], Connection] = {}
_authorised: dict[tuple[int, Endpoint], dict[str, float]] = {}
"""Until when (monotonic seconds) each address needs no new token."""


def checked_out(endpoint: Endpoint, timeout_s: float, address: str) -> Connection:
    """A connection that is alive, with a right on `address` if rights come from tokens. Raises Unavailable or
    Refused."""
    key = (os.getpid(), endpoint)
    connection = _connections.get(key)
    if connection is None or not connection.is_alive():
        connection = _connections[key] = Connection(endpoint, timeout_s)
        _authorised[key] = {}
    connection.timeout_s = timeout_s
    if has_tokens(endpoint) and _authorised[key].get(address, 0) <= time.monotonic():
        token, valid_s = token_for(endpoint, address)
        try:
            put_token(connection, audience_of(endpoint, address), token)
        except Unavailable:
            dropped(connection)
            raise
        _authorised[key][address] = time.monotonic() + valid_s
    return connection


def dropped(connection: Connection) -> None:
    """Close a connection that has failed, so that nobody uses it again."""
    key = (os.getpid(), connection.endpoint)
    if _connections.get(key) is connection:
        del _connections[key]
    connection.close()
