"""The broker's operations on one subqueue by position (AMQP contract 7.6), as plain calls that outlast a
lost connection.

Each of them can be repeated without harm, and is, while the broker is not available.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self

from pyspark_partibus.client.connection import Connection
from pyspark_partibus.client.links import Sender
from pyspark_partibus.client.patience import Patience, patiently
from pyspark_partibus.client.pool import checked_out, dropped
from pyspark_partibus.client.requests import Requester
from pyspark_partibus.client.values import LONGS, Array, Timestamp
from pyspark_partibus.endpoint import Endpoint
from pyspark_partibus.errors import Refused, Unavailable
from pyspark_partibus.offsets import Positions, counter_of, on_the_wire, partition_of

GENERATION, PARTITIONS = "partibus:generation", "partibus:partitions"
DUPLICATE_WINDOW = "partibus:duplicate-detection-window"
REQUESTED_BYTES_MAX = 3 << 20
"""The largest message that is sent in a request, which the broker limits to 4 MiB. Entities may take larger
ones."""
CURSOR_NOT_FOUND, CURSOR_OWNED = "partibus:cursor-not-found", "partibus:cursor-owned"


@dataclass(frozen=True, slots=True)
class Heads:
    """What `partibus:get-positions` gave; all maps are by partition, all positions are counters."""

    generation: str
    starts: Positions
    heads: Positions
    messages: dict[int, int]
    sizes: dict[int, int]
    by_time: Positions
    unavailable: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cursor:
    """A cursor of the broker."""

    owner: str
    generation: str
    positions: Positions


@dataclass(frozen=True, slots=True)
class Facts:
    """What a sender is told when it attaches (AMQP contract 7.6.1)."""

    generation: str
    partitions: int
    duplicate_window_ms: int | None
    """For how long message-ids are known; None if the entity does not detect duplicates."""


@dataclass(frozen=True, slots=True)
class Sent:
    """What became of a list of messages."""

    accepted: int
    duplicates: int


class Node:
    """The management node of one subqueue. Use it in a `with` statement where the process goes on afterwards,
    or its links stay open as long as the connection."""

    def __init__(self, endpoint: Endpoint, address: str, patience: Patience) -> None:
        self._endpoint, self._address, self._patience = endpoint, address, patience
        self._connection: Connection | None = None
        self._requester: Requester | None = None

    def _ask(self, operation: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """Make a request, again if need be."""
        return patiently(lambda: self._ask_once(operation, dict(body)), self._patience)

    def _ask_once(self, operation: str, body: dict[str, Any]) -> dict[str, Any]:
        try:
            # Also in the middle of a long query: its token may need to be renewed.
            connection = checked_out(self._endpoint, self._patience.request_s, self._address)
            if self._requester is None or connection is not self._connection:
                self._connection = connection
                self._requester = Requester(connection, f"{self._address}/$management")
            return self._requester.ask(operation, body)
        except Unavailable:
            self.drop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Detach the links. The connection stays, for whoever comes next in this process."""
        if self._requester is not None:
            self._requester.close()
        self._connection = self._requester = None

    @contextmanager
    def trying_once(self) -> Iterator[None]:
        """Until the end of the `with` statement, requests that fail are not made again."""
        patience, self._patience = self._patience, replace(self._patience, retry_s=0)
        try:
            yield
        finally:
            self._patience = patience

    def drop(self) -> None:
        """Give up the connection; the next request makes a new one."""
        if self._connection is not None:
            dropped(self._connection)
        self._connection = self._requester = None

    # --- positions and cursors ----------------------------------------------------------------------------

    def heads(self, enqueued_time_ms: int | None = None, *, undecided: bool = False) -> Heads:
        """Where each partition begins and ends, and the position of a time if one is given. undecided: count
        what cannot be read for good yet, because older messages may still follow it."""
        body: dict[str, Any] = {"undecided": True} if undecided else {}
        if enqueued_time_ms is not None:
            body["enqueued-time"] = Timestamp(enqueued_time_ms)
        answer = self._ask("partibus:get-positions", body)
        partitions = answer["partitions"]

        def column(name: str) -> dict[int, int]:
            return dict(zip(partitions, answer.get(name) or [], strict=False))

        def counters(name: str) -> Positions:
            return {partition: counter_of(number) for partition, number in column(name).items()}

        return Heads(
            str(answer["generation"]),
            counters("starts"),
            counters("heads"),
            column("messages"),
            column("bytes"),
            counters("positions-by-time"),
            tuple(answer.get("unavailable-partitions") or ()),
        )

    def cursor(self, name: str) -> Cursor | None:
        """The cursor of this name; None if there is none."""
        try:
            answer = self._ask("partibus:get-cursor", {"cursor": name})
        except Refused as refused:
            if refused.condition == CURSOR_NOT_FOUND:
                return None
            raise
        return Cursor(str(answer["owner"]), str(answer["generation"]), _by_partition(answer["positions"]))

    def create_cursor(self, name: str, owner: str, positions: Positions, take_over: bool) -> None:
        """Make sure that there is a cursor of this name and owner. Raises Refused with `CURSOR_OWNED`."""
        body = {
            "cursor": name,
            "owner": owner,
            "positions": Array(LONGS, on_the_wire(positions)),
            "take-over": take_over,
        }
        self._ask("partibus:create-cursor", body)

    def advance_cursor(self, name: str, owner: str, positions: Positions, complete: bool) -> None:
        """Move a cursor forward, and complete the messages before it if wanted. Raises Refused."""
        body = {
            "cursor": name,
            "owner": owner,
            "positions": Array(LONGS, on_the_wire(positions)),
            "complete": complete,
        }
        self._ask("partibus:advance-cursor", body)

    def settle_through(self, positions: Positions) -> None:
        """Complete all active messages before these positions that nobody has locked."""
        self._ask("partibus:settle-through", {"positions": Array(LONGS, on_the_wire(positions))})

    # --- sending ------------------------------------------------------------------------------------------

    def facts(self) -> Facts:
        """What a sender is told about the entity. Raises Refused if we may not send."""
        return patiently(self._facts_once, self._patience)

    def _facts_once(self) -> Facts:
        with self._sender({GENERATION: None}) as sender:
            told = sender.remote_properties
        if GENERATION not in told:
            raise Refused(
                f"sender to '{self._address}'",
                "amqp:not-allowed",
                "this is no queue or topic, or the broker is not Partibus",
            )
        return Facts(str(told[GENERATION]), int(told[PARTITIONS]), told.get(DUPLICATE_WINDOW))

    def send(self, messages: Sequence[bytes]) -> Sent:
        """Send encoded messages; when this returns, they are durable."""
        if len(messages) == 1 and len(messages[0]) > REQUESTED_BYTES_MAX:
            patiently(lambda: self._transfer_once(messages[0]), self._patience)
            return Sent(1, 0)
        answer = self._ask("partibus:send-messages", {"messages": messages})
        return Sent(int(answer["accepted"]), len(answer.get("duplicates") or ()))

    def _transfer_once(self, message: bytes) -> None:
        """Send a message by itself. The broker accepts a duplicate without saying that it is one."""
        with self._sender() as sender:
            sender.send(message)
            sender.outcome()

    @contextmanager
    def _sender(self, properties: Mapping[str, Any] | None = None) -> Iterator[Sender]:
        """A sender, which is detached in the end. A connection that fails meanwhile is not used again."""
        connection = checked_out(self._endpoint, self._patience.request_s, self._address)
        try:
            sender = Sender(connection, self._address, properties)
            try:
                yield sender
            finally:
                sender.close()
        except Unavailable:
            dropped(connection)
            raise

    def last_batch(self, sink: str) -> int | None:
        """The highest batch that a sink has committed. Raises Refused if the ledger has no room for it."""
        batch = self._ask("partibus:get-batch", {"sink": sink, "will-commit": True}).get("batch")
        return None if batch is None else int(batch)

    def commit_batch(self, sink: str, batch: int) -> bool:
        """Note a batch as committed; False if it was already."""
        return bool(self._ask("partibus:commit-batch", {"sink": sink, "batch": batch}).get("committed"))


def _by_partition(numbers: Sequence[int]) -> Positions:
    return {partition_of(number): counter_of(number) for number in numbers}
