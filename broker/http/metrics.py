"""`GET /metrics` in Prometheus text format: the metrics of the process, each entity's counters, and gauges
gathered at scrape time.

It is open to everyone who can reach the port, like `/health`. The text is written and sent in slices
(`broker/base/slices.py`), so that many entities neither block the event loop nor fill the memory. The
contents of unopened partitions come from the index: a scrape opens no log. After a crash, a scrape waits
until the partitions that were open before the crash are known again, and leaves out any that are still
unknown when the wait ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

from broker.base.counters import exposition, heading, label_of
from broker.base.metrics import Metrics
from broker.base.slices import Slices
from broker.entities.descriptions import MAIN
from broker.entities.topics import subscription_path
from broker.http.answer_portions import send_portions
from broker.namespace.entity import Entity
from broker.namespace.health import DOWN, MISSING
from broker.namespace.namespaces import Namespaces
from broker.namespace.runtime import EntityRuntime
from broker.namespace.topic import Topic
from broker.operations.message_states import SubqueueCounts

ENTITY_GAUGES = {
    "partibus_active_messages": "Messages ready for delivery, or locked.",
    "partibus_dead_letter_messages": "Messages in the dead-letter subqueue.",
    "partibus_scheduled_messages": "Messages not yet due.",
    "partibus_messages": "All messages, whatever their state.",
    "partibus_size_bytes": "Bytes stored.",
    "partibus_message_ids": (
        "Message-ids remembered to detect duplicates, in open partitions. Each takes about 100 bytes of "
        "memory."
    ),
    "partibus_size_bytes_max": "Bytes that all partitions of the entity together may hold.",
    "partibus_entity_available": "1 when every partition works, 0 when one is down or missing.",
}
"""Gauges per entity, gathered at scrape time."""
PARTITION_GAUGES = {
    "partibus_partitions": "Partitions by their state.",
    "partibus_partition_down": (
        "1 for each partition that is damaged, has failed, is recovering or is missing with its data folder; "
        "others have no such series."
    ),
    "partibus_uncounted_partitions": (
        "Partitions of the entity that are down: its gauges have their messages as they were when last "
        "known, or not at all. An entity whose counts are complete has no such series."
    ),
    "partibus_damaged_entities": (
        "Entities that are out of service because their descriptions cannot be read."
    ),
}
"""Gauges for the health of partitions, gathered at scrape time."""
PARTITION_STATES = ("closed", "opening", "healthy", "recovering", "failed", "damaged", MISSING, "stopped")
_ENTITIES_PER_STEP = 32


class MetricsHandler:
    """Writes all metrics, taking turns with other work in `slices`."""

    def __init__(self, metrics: Metrics, namespaces: Namespaces, slices: Slices) -> None:
        self._metrics, self._slices = metrics, slices
        self._namespaces = [served.namespace for served in namespaces]

    async def handle(self, request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": CONTENT_TYPE_LATEST})
        await response.prepare(request)
        if request.method != "HEAD":
            await asyncio.gather(*(each.counted() for each in self._namespaces))
            async for texts in self._slices.of(map(str.encode, self._texts())):
                await send_portions(response, texts)
        await response.write_eof()
        return response

    def _texts(self) -> Iterator[str]:
        """The whole exposition, in short steps. An entity that appears or disappears meanwhile may or may not
        be included."""
        self._metrics.partitions_unknown.set(self._namespaces[0].unknown_count)  # of all namespaces
        yield generate_latest(self._metrics.registry).decode()
        yield from exposition(list(self._metrics.entities.values()))
        yield from self._gauges()
        yield from self._partitions()

    def _partitions(self) -> Iterator[str]:
        """The number of partitions in each state, and a series for each partition that is down."""
        states = dict.fromkeys(PARTITION_STATES, 0)
        counts, down, uncounted, damaged = [
            heading(name, text, "gauge") for name, text in PARTITION_GAUGES.items()
        ]
        lines: list[str] = []
        incomplete: list[str] = []
        entities = [entity for each in self._namespaces for entity in each.live_entities()]
        for start in range(0, len(entities), _ENTITIES_PER_STEP):
            for entity in entities[start : start + _ENTITIES_PER_STEP]:
                entity.count_health(states)
                if not entity.available:
                    label = label_of(entity.name, entity.meter.namespace)
                    if numbers := entity.uncounted():
                        incomplete.append(f"partibus_uncounted_partitions{{{label}}} {len(numbers)}.0\n")
                    for number, state in enumerate(entity.health()):
                        if state in DOWN:
                            which = f'{label},partition="{number}",state="{state}"'
                            lines.append(f"partibus_partition_down{{{which}}} 1.0\n")
            yield ""
        yield counts + "".join(
            [f'partibus_partitions{{state="{state}"}} {count}.0\n' for state, count in states.items()]
        )
        yield down
        yield from lines
        yield uncounted
        yield from incomplete
        yield f"{damaged}partibus_damaged_entities {sum(len(each.damaged) for each in self._namespaces)}.0\n"

    def _gauges(self) -> Iterator[str]:
        texts = [deque([heading(name, text, "gauge")]) for name, text in ENTITY_GAUGES.items()]
        """The series of each gauge, those of some entities in one text: to free a text for each entity at the
        end would hold the event loop for milliseconds."""
        some = _Rows()
        for row in self._rows():
            if row is None:
                yield ""
                continue
            some.add(row)
            if len(some.labels) == _ENTITIES_PER_STEP:
                some.write(texts)
                yield ""
        some.write(texts)
        for text in texts:
            while text:
                yield text.popleft()

    def _rows(self) -> Iterator[_Row | None]:
        """Each entity and each subscription: its label, and the values of its gauges. None where a topic, or
        an entity in use, takes another step."""
        for entity in [each for namespace in self._namespaces for each in namespace.live_entities()]:
            if entity.unknown:
                continue
            label = label_of(entity.name, entity.meter.namespace)
            if not isinstance(entity, Topic):
                yield _row_of(label, entity, entity.counts())
                if entity.known_counts is None:
                    yield None
            else:
                counts = yield from entity.count_in_steps()
                yield _row_of(label, entity, counts)
                for each in entity.description.subscriptions:
                    path = subscription_path(entity.name, each.name)
                    label = label_of(path, entity.meter.namespace)
                    yield label, _first_values(entity.subscription_runtime(each, counts)), None


_Row = tuple[str, tuple[int, ...], tuple[int, ...] | None]
"""A label; the values of the first five of ENTITY_GAUGES, which entities and subscriptions have; and those of
the others, None for a subscription."""
_EMPTY = (0, 0, 0, 0, 0)


def _row_of(label: str, entity: Entity, counts: Mapping[str, SubqueueCounts]) -> _Row:
    """The row of an entity. Most of ten thousand queues are empty, so an empty queue takes a shortcut."""
    available = int(entity.available)
    if not counts:
        return label, _EMPTY, (0, entity.size_bytes_max, available)
    runtime = entity.runtime_with(counts)
    message_ids = runtime.counts[MAIN].message_ids if MAIN in runtime.counts else 0
    return label, _first_values(runtime), (message_ids, entity.size_bytes_max, available)


class _Rows:
    """The rows of some entities and subscriptions, to be written as lines of each gauge."""

    __slots__ = ("_first", "_others", "_own_labels", "labels")

    def __init__(self) -> None:
        self.labels: list[str] = []
        self._own_labels: list[str] = []
        """Those of entities."""
        self._first: list[tuple[int, ...]] = []
        self._others: list[tuple[int, ...]] = []

    def add(self, row: _Row) -> None:
        """Add a row."""
        label, first, others = row
        self.labels.append(label)
        self._first.append(first)
        if others is not None:
            self._own_labels.append(label)
            self._others.append(others)

    def write(self, texts: Sequence[deque[str]]) -> None:
        """Add the lines of each gauge to its texts, as one, and forget the rows."""
        columns = [(self.labels, column) for column in zip(*self._first, strict=True)]
        columns += [(self._own_labels, column) for column in zip(*self._others, strict=True)]
        for name, (labels, column), text in zip(ENTITY_GAUGES, columns, texts, strict=False):
            value = column[0]
            if column.count(value) == len(column):  # as most are: most queues hold nothing and all work
                lines = f"}} {value}.0\n{name}{{".join(labels)
                text.append(f"{name}{{{lines}}} {value}.0\n")
            else:
                text.append(
                    "".join(
                        [
                            f"{name}{{{label}}} {value}.0\n"
                            for label, value in zip(labels, column, strict=True)
                        ]
                    )
                )
        for each in (self.labels, self._own_labels, self._first, self._others):
            each.clear()


def _first_values(runtime: EntityRuntime) -> tuple[int, ...]:
    """The values of the first five of ENTITY_GAUGES, which entities and subscriptions have."""
    return (
        runtime.active,
        runtime.dead_letter,
        runtime.scheduled,
        runtime.message_count,
        runtime.size_bytes,
    )
