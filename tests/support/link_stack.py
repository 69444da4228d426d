"""One real front-end connection with both ends replaced: the byte stream is a list, and the test plays the
partitions.

The client side sends frames built by hand (`raw_amqp.py`); on the partition side the test answers operations.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar, cast

from broker.access.sas import Authorizer
from broker.base.clock import ManualClock
from broker.base.errors import Reason, Refused, not_found_text
from broker.base.metrics import Metrics
from broker.entities.descriptions import AuthorizationRule, QueueDescription, QueueSettings, key_of
from broker.entities.tiers import UNLIMITED, Tier
from broker.frontend.attaching import Resolve, attach_to_entity
from broker.frontend.connection import Connection
from broker.frontend.services import Services
from broker.identifiers import ClientId
from broker.message.property_sizes import limits_of
from broker.message.stored import MessageIds
from broker.namespace.entity import Entity
from broker.namespace.meter import EntityMeter
from broker.namespace.namespace import Namespace
from broker.namespace.namespaces import Namespaces, ServedNamespace
from broker.namespace.queue import Queue
from broker.namespace.resting import Resting
from broker.namespace.runtime import EntityRuntime
from broker.operations.interface import Answer, Operation, Sink
from broker.operations.message_states import SubqueueCounts
from broker.operations.sending import Send
from broker.settings.key_files import namespace_rules
from broker.settings.settings import Settings, load_settings
from broker.throttle.memory_mark import Memory
from broker.throttle.throttle import throttle_of
from protocol.codec import UInt
from storage.disk import LocalDisk
from storage.partition_index import PartitionIndex
from tests.support import raw_amqp as raw
from tests.support.engine_peer import frames_of
from tests.support.raw_amqp import Frame
from tests.support.turn_clock import count_turns
from tests.support.waiting import until as until

O = TypeVar("O")  # noqa: E741


class Part:
    """A partition that queues its operations for a test to inspect and answer."""

    awaits_more = False

    def __init__(self, number: int) -> None:
        self.number = number
        self.available, self.health = True, "healthy"
        self.posted: deque[tuple[Operation, ClientId, Sink]] = deque()

    def join(self, more: Send, client: ClientId, cookie: object) -> bool:
        return False

    def post(self, operation: Operation, client: ClientId, sink: Sink) -> None:
        self.posted.append((operation, client, sink))

    def counts(self, only: str | None = None) -> dict[str, SubqueueCounts]:
        return {}

    def size(self) -> int:
        return sum(each.bytes for each in self.counts().values())

    async def opened(self) -> None:
        return

    async def stop(self, *, is_deleted: bool = False) -> None:
        return

    def has(self, kind: type[object]) -> bool:
        """Whether an operation of this kind is waiting."""
        return any(isinstance(operation, kind) for operation, _, _ in self.posted)

    def take(self, kind: type[O]) -> tuple[O, Sink]:
        """Remove the oldest operation of this kind; gives it and the sink for its answer."""
        for entry in self.posted:
            if isinstance(entry[0], kind):
                self.posted.remove(entry)
                return entry[0], entry[2]
        raise AssertionError(
            f"partition {self.number} was asked for no {kind.__name__}, but for "
            f"{[entry[0] for entry in self.posted]}"
        )

    def take_all(self, kind: type[O]) -> list[O]:
        """Remove and give all operations of this kind."""
        taken = []
        while self.has(kind):
            taken.append(self.take(kind)[0])
        return taken

    def answer(self, kind: type[Any], make: Callable[[Any], Answer]) -> Operation:
        """Answer the oldest operation of this kind."""
        operation, sink = self.take(kind)
        sink(make(operation))
        return cast(Operation, operation)


class ByteStream:
    """A stand-in for the socket."""

    def __init__(self) -> None:
        self.written = bytearray()
        self.reading, self.ended, self.closed, self.aborted = True, False, False, False

    def write(self, data: bytes | memoryview) -> None:
        self.written += data

    def writelines(self, list_of_data: Sequence[bytes | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def get_write_buffer_size(self) -> int:
        """Bytes the client has not read yet."""
        return len(self.written)

    def set_write_buffer_limits(self, high: int) -> None:
        """Does nothing: this stream never holds back output."""

    def get_extra_info(self, name: str) -> Any:
        """It has no socket."""
        return None

    def is_closing(self) -> bool:
        return self.closed or self.aborted

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        self.ended = True

    def close(self) -> None:
        self.closed = True

    def abort(self) -> None:
        self.aborted = True

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class FixedNamespace:
    """A namespace with a fixed set of queues."""

    name = "test"

    def __init__(self) -> None:
        self.tier: Tier = UNLIMITED
        self.queues: dict[str, Entity] = {}
        self.when_rules_change: list[Callable[[], None]] = []

    def find(self, name: str) -> Entity | None:
        return self.queues.get(key_of(name))

    async def runtime(self, name: str) -> EntityRuntime:
        return self.queues[key_of(name)].runtime()

    def missing(self, name: str) -> Refused:
        return Refused(Reason.ENTITY_NOT_FOUND, not_found_text(f"sb://{self.name}/{name}"))

    def rules_of(self, path: str) -> Sequence[AuthorizationRule]:
        queue = self.find(path)
        return queue.description.settings.authorization_rules if queue else ()

    def change_rules(self, name: str, *rules: AuthorizationRule) -> None:
        """Replace a queue's authorization rules, as the administration API does."""
        queue = self.queues[key_of(name)]
        queue.description = queue.description.updated(
            replace(queue.description.settings, authorization_rules=rules), 0
        )
        for tell in self.when_rules_change:
            tell()


class LinkStack:
    """A broker with one queue, `queue`, and as many connections as a test opens. The loop's clock counts
    its turns (`turn_clock.py`), except where threads work (`has_threads`)."""

    def __init__(
        self,
        partitions: int = 4,
        settings: QueueSettings | None = None,
        *,
        has_threads: bool = False,
        **given: object,
    ) -> None:
        if not has_threads:
            count_turns(asyncio.get_running_loop())
        self.settings: Settings = load_settings(**{"receive_cache_messages": 100, **given})
        self.clock, self.metrics = ManualClock(), Metrics()
        self.parts = [Part(number) for number in range(partitions)]
        self.namespace = FixedNamespace()
        self.resting = Resting(PartitionIndex(Path("never-read"), LocalDisk()), self.clock)
        self.throttle = throttle_of(
            "test",
            self.settings.credits_per_second,
            self.clock,
            self.metrics.credits_refused.inc,
            self.settings.throttle_filter_credits,
        )
        self.queue = self.add_queue("queue", partitions, settings)
        self.tasks: set[asyncio.Task[None]] = set()
        self.resident = 0
        """The broker's apparent memory use in bytes."""
        self.memory = Memory(1 << 30, lambda: self.resident, lambda: 0)
        self.services = Services(
            settings=self.settings,
            namespaces=Namespaces(
                ServedNamespace(
                    cast(Namespace, self.namespace),
                    Authorizer(namespace_rules(self.settings), self.namespace.rules_of),
                    self.settings,
                )
            ),
            clock=self.clock,
            metrics=self.metrics,
            memory=self.memory,
            spawn=self._spawn,
            message_id=MessageIds(b"\0" * 8),
        )

    def add_queue(self, name: str, partitions: int, settings: QueueSettings | None = None) -> Queue:
        """Add a queue on the same partitions."""
        description = QueueDescription(name, "0" * 32, partitions, settings or QueueSettings())
        queue = Queue(
            description,
            EntityMeter(self.metrics, name),
            lambda _, number: cast(Any, self.parts[number]),
            self.resting,
        )
        queue.throttle = self.throttle
        queue.property_limits = limits_of(self.settings.properties_kb_max, self.settings.property_kb_max)
        for number in range(partitions):
            queue.partition(number)
        self.namespace.queues[key_of(name)] = queue
        return queue

    def _spawn(self, work: Coroutine[Any, Any, None], *, name: str) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name=name)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task

    async def connect(
        self, login: bytes | None = None, *, resolve: Resolve = attach_to_entity, **open_given: Any
    ) -> Client:
        """A client that has logged in with the root key, opened the connection and begun a session; `resolve`
        finds the node that serves its links.
        """
        client = Client(self, resolve)
        await client.log_in(login)
        await client.open(**open_given)
        return client

    def part_of(self, kind: type[object]) -> Part:
        """The only partition that was asked for an operation of this kind."""
        (part,) = (part for part in self.parts if part.has(kind))
        return part


class Client:
    """The client's side of one connection."""

    def __init__(self, stack: LinkStack, resolve: Resolve = attach_to_entity) -> None:
        self.stack, self.stream = stack, ByteStream()
        self.connection = Connection(self.stream, stack.services, "test", resolve)

    async def log_in(self, login: bytes | None = None) -> None:
        self.connection.data_received(raw.sasl_plain() if login is None else login)
        await turn()
        assert self.stream.written.startswith(raw.SASL_HEADER)
        self.stream.written.clear()

    async def open(self, *, idle_timeout_ms: int = 0, window: int = 100_000) -> None:
        fields = raw.open_fields()
        fields[4] = UInt(idle_timeout_ms)
        self.say(raw.AMQP_HEADER, raw.frame(raw.OPEN, fields), raw.frame(raw.BEGIN, raw.begin_fields(window)))
        assert [frame.code for frame in await self.hear()] == [raw.OPEN, raw.BEGIN]

    def say(self, *frames: bytes) -> None:
        """Write frames in one piece."""
        self.connection.data_received(b"".join(frames))

    async def hear(self) -> list[Frame]:
        """Frames that the broker writes in the next turns of the loop."""
        await turn()
        data = bytes(self.stream.written)
        self.stream.written.clear()
        return frames_of(data)

    async def heard(self, code: int) -> list[Frame]:
        """The frames of one performative among them."""
        return [frame for frame in await self.hear() if frame.code == code]

    async def attach(self, fields: list[Any]) -> list[Frame]:
        """Attach a link; gives all frames written in answer."""
        self.say(raw.frame(raw.ATTACH, fields))
        return await self.hear()

    async def sender(self, handle: int = 0, address: str = "queue") -> None:
        frames = await self.attach(raw.sender_attach(handle, address))
        assert [frame.code for frame in frames] == [raw.ATTACH, raw.FLOW], frames

    async def receiver(
        self, handle: int = 0, *, credit: int = 0, settled: bool = False, address: str = "queue"
    ) -> None:
        frames = await self.attach(raw.receiver_attach(handle, address, settled=settled))
        assert [frame.code for frame in frames] == [raw.ATTACH], frames
        if credit:
            self.flow(handle, 0, credit)
            await turn()

    def flow(self, handle: int, delivery_count: int, credit: int, *, drain: bool = False) -> None:
        self.say(raw.frame(raw.FLOW, raw.flow_fields(handle, delivery_count, credit, drain=drain)))

    def transfer(self, handle: int, number: int, payload: bytes, **given: Any) -> None:
        self.say(raw.frame(raw.TRANSFER, raw.transfer_fields(handle, number, **given), payload))

    def dispose(self, first: int, last: int, outcome: object, *, settled: bool = False) -> None:
        """Give received deliveries an outcome."""
        self.say(raw.frame(raw.DISPOSITION, raw.disposition_fields(True, first, last, settled, outcome)))

    def detach(self, handle: int) -> None:
        self.say(raw.frame(raw.DETACH, [UInt(handle), True]))


async def turn() -> None:
    """Let the event loop run everything that is due now."""
    for _ in range(4):
        await asyncio.sleep(0)


def tags_of(frames: Sequence[Frame]) -> list[bytes]:
    """Delivery tags of the transfers among the frames."""
    return [frame.field(2) for frame in frames if frame.code == raw.TRANSFER]
