"""The counters of one entity as plain numbers, and their exposition for Prometheus.

A broker may have ten thousand entities with some thirty-five series each. So an entity's counters are numbers
in one small object (about 2 KiB when all are in use), the hot path updates them once per cycle, and they
become text only on request, a few entities at a time: `exposition` takes small steps, for
`broker/base/slices.py`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

SECONDS = (0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.256, 0.512, 1.0, 2.5, 5.0)
"""The upper bounds of the buckets of every duration histogram."""

PREFIX = "partibus_"
COUNTERS: Mapping[str, str] = {
    "incoming_messages": "Messages sent to the entity and acknowledged.",
    "incoming_bytes": "Bytes of the messages sent to the entity and acknowledged.",
    "duplicate_messages": "Messages acknowledged and dropped, because their message-ids were known.",
    "forwarded_messages": "Messages forwarded from the entity to another one.",
    "outgoing_messages": "Messages handed to receivers.",
    "outgoing_bytes": "Bytes of the messages handed to receivers.",
    "completed_messages": "Messages removed by their receiver.",
    "abandoned_messages": "Messages abandoned by their receiver.",
    "deferred_messages": "Messages deferred by their receiver.",
    "dead_lettered_messages": "Messages moved to the dead-letter subqueue, for whatever reason.",
    "expired_messages": "Messages whose time to live ran out.",
    "expired_locks": "Locks that ran out before their message was settled.",
    "successful_requests": "Operations carried out.",
    "user_errors": "Operations refused because of the client: lock that ran out, missing right.",
    "server_errors": "Operations that failed because of the broker or its disk, or needed a lock that ended.",
    "throttled_requests": "Operations and messages refused because the namespace had no credits for them.",
    "receive_cache_hits": "Messages that a receiver got from its connection's cache.",
    "receive_cache_misses": "Messages that came from a partition on request.",
    "receive_cache_recalls": "Messages that a partition took back from a cache for another receiver.",
    "receive_cache_returns": "Messages given back unseen when a link or connection closed.",
}
"""The counters of each entity: the attribute of `EntityCounters`, which is also the name without `partibus_`
and `_total`, and the help text."""
SEND_SECONDS = "send_seconds"
SEND_SECONDS_TEXT = "Time from the arrival of a message to its acknowledgement."
ENTITY_SERIES = frozenset({*(f"{PREFIX}{name}_total" for name in COUNTERS), PREFIX + SEND_SECONDS})
"""The names under which the documentation lists them."""

_ENTITIES_PER_STEP = 64
_COUNTED = attrgetter(*COUNTERS)


class Durations:
    """A histogram of durations."""

    __slots__ = ("buckets", "seconds")

    def __init__(self) -> None:
        self.buckets = [0] * (len(SECONDS) + 1)
        """Counts by length: bucket i counts durations above the previous bound of SECONDS and up to its own;
        the last one counts longer ones."""
        self.seconds = 0.0
        """The sum of all durations."""

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        self.buckets[bisect_left(SECONDS, seconds)] += 1
        self.seconds += seconds


class EntityCounters:
    """The counters of one entity. Callers add to the attributes directly."""

    __slots__ = (
        "abandoned_messages",
        "completed_messages",
        "dead_lettered_messages",
        "deferred_messages",
        "duplicate_messages",
        "entity",
        "expired_locks",
        "expired_messages",
        "forwarded_messages",
        "incoming_bytes",
        "incoming_messages",
        "namespace",
        "outgoing_bytes",
        "outgoing_messages",
        "receive_cache_hits",
        "receive_cache_misses",
        "receive_cache_recalls",
        "receive_cache_returns",
        "send_seconds",
        "server_errors",
        "successful_requests",
        "throttled_requests",
        "user_errors",
    )

    def __init__(self, entity: str, namespace: str = "") -> None:
        """`namespace`: the label of its series; "" if the broker has one namespace only."""
        self.entity, self.namespace = entity, namespace
        self.incoming_messages = self.incoming_bytes = self.outgoing_messages = self.outgoing_bytes = 0
        self.completed_messages = self.abandoned_messages = self.deferred_messages = (
            self.dead_lettered_messages
        ) = 0
        self.expired_messages = self.expired_locks = self.duplicate_messages = self.forwarded_messages = 0
        self.successful_requests = self.user_errors = self.server_errors = self.throttled_requests = 0
        self.receive_cache_hits = self.receive_cache_misses = self.receive_cache_recalls = (
            self.receive_cache_returns
        ) = 0
        self.send_seconds = Durations()

    @property
    def counted(self) -> bool:
        """Whether any counter is above zero. An entity that nobody uses shows no counters."""
        return any(_COUNTED(self))


def heading(name: str, text: str, kind: str) -> str:
    """The two header lines of a metric family."""
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def label_of(entity: str, namespace: str = "") -> str:
    """`entity="…"`, escaped, after the label of the namespace if there is one."""
    escaped = entity.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
    return f'namespace="{namespace}",entity="{escaped}"' if namespace else f'entity="{escaped}"'


def exposition(entities: Sequence[EntityCounters]) -> Iterator[str]:
    """The text of these entities' counters, family by family. Each step gives a few hundred lines at most, or
    none."""
    groups: list[tuple[list[str], list[EntityCounters]]] = []
    for start in range(0, len(entities), _ENTITIES_PER_STEP):
        counted = [each for each in entities[start : start + _ENTITIES_PER_STEP] if each.counted]
        groups.append(([label_of(each.entity, each.namespace) for each in counted], counted))
        yield ""
    for name, text in COUNTERS.items():
        total = f"{PREFIX}{name}_total"
        yield heading(total, text, "counter")
        value_of = attrgetter(name)
        for labels, counted in groups:
            yield "".join(
                [
                    f"{total}{{{label}}} {value_of(each)}.0\n"
                    for label, each in zip(labels, counted, strict=True)
                ]
            )
    yield heading(PREFIX + SEND_SECONDS, SEND_SECONDS_TEXT, "histogram")
    for labels, counted in groups:
        yield "".join(
            [_histogram(label, each.send_seconds) for label, each in zip(labels, counted, strict=True)]
        )


_LE = [*(f',le="{bound}"}} ' for bound in SECONDS), ',le="+Inf"} ']


def _histogram(label: str, durations: Durations) -> str:
    start = f"{PREFIX}{SEND_SECONDS}_bucket{{{label}"
    lines: list[str] = []
    count = 0
    for le, more in zip(_LE, durations.buckets, strict=True):
        count += more
        lines.append(f"{start}{le}{count}.0\n")
    lines.append(
        f"{PREFIX}{SEND_SECONDS}_count{{{label}}} {count}.0\n{PREFIX}{SEND_SECONDS}_sum{{{label}}} "
        f"{durations.seconds!r}\n"
    )
    return "".join(lines)
