"""What every client is put through: the one list of scenarios, and the queue that each client has for each.

A scenario is a name and the settings of its queue. Each client has a queue of its own per scenario, so that
one failure never explains another. The programs in other languages know the names too: they print one line
per scenario they ran.
"""

from __future__ import annotations

from tests.support.broker_process import queue

LOCK_SHORT_S = 5
"""The shortest lock that the emulator allows (HTTP contract 5.4)."""

ROUND_TRIP: dict[str, dict[str, object]] = {
    "send-one": {},
    "send-many": {},
    "send-batch": {},
    "receive-and-delete": {},
    "complete": {},
    "abandon": {},
    "defer-and-fetch": {},
    "dead-letter": {},
    "peek-pages": {},
    "renew-lock": {"LockDuration": f"PT{LOCK_SHORT_S}S"},
}
"""What any official client does: the names and the settings of the queues."""

CHANGED_PROPERTIES: dict[str, dict[str, object]] = {
    "abandon-with-properties": {},
    "defer-with-properties": {},
    "dead-letter-with-properties": {},
}
"""For the clients that can change application properties while they settle: all official ones but
Python's."""

DEAD_LETTER_QUEUE: dict[str, dict[str, object]] = {
    "dead-letter-queue-leads-no-further": {"MaxDeliveryCount": 2}
}
"""For the clients that can be told of a dead-lettering that was refused: Java's cannot (AMQP contract
6.2)."""

DELIVERY_ANNOTATIONS: dict[str, dict[str, object]] = {"delivery-annotations": {}}
"""For the clients that show them."""

LIMITS: dict[str, dict[str, object]] = {
    "max-delivery-count": {"MaxDeliveryCount": 2},
    "time-to-live": {"DeadLetteringOnMessageExpiration": True},
    "large-message": {},
    "message-too-large": {},
    "unknown-queue": {},
    "wrong-key": {},
}
"""Where the broker steps in, or refuses."""

PYTHON_ONLY: dict[str, dict[str, object]] = {
    "unread-messages-go-back": {},
    "dead-letter-without-reason": {},
    "deferred-dead-letter-and-abandon": {},
    "peek-shows-every-state": {},
    "time-to-live-dropped": {},
    "lock-lost": {"LockDuration": f"PT{LOCK_SHORT_S}S"},
    "settled-twice": {},
    "queue-time-to-live": {"DefaultMessageTimeToLive": "PT1S", "DeadLetteringOnMessageExpiration": True},
    "deferred-in-bulk": {},
    "message-fidelity": {},
    "body-kinds": {},
    "same-key-same-partition": {},
    "no-key-spreads": {},
    "conflicting-keys": {},
    "mixed-keys-in-a-batch": {},
    "full-partitions": {"PartitionCount": 3, "MaxSizeInMegabytes": 1},
    "one-partition-keeps-order": {"PartitionCount": 1},
    "key-keeps-order": {},
}
"""What the wire behaviour is checked with in depth, with one client for all."""

PLAIN_AMQP: dict[str, dict[str, object]] = {
    "send-one": {},
    "send-many": {},
    "send-batch": {},
    "receive-settled": {},
    "accepted": {},
    "released": {},
    "rejected": {},
    "modified-failed": {},
    "modified-undeliverable-here": {},
    "modified-annotations": {},
    "modified-plain": {},
    "dead-letter-queue": {},
    "drain": {},
    "detach-and-attach-again": {},
    "multi-frame-messages": {},
    "message-too-large": {},
    "unknown-queue": {},
    "wrong-key": {},
    "peek-pages": {},
    "renew-lock": {"LockDuration": f"PT{LOCK_SHORT_S}S"},
    "defer-and-fetch": {},
    "update-disposition": {},
    "browse": {},
    "browse-settled": {},
    "browse-pages": {},
    "browse-dead-letters": {},
    "browse-follows": {},
    "filter-refused": {},
}
"""What AMQP 1.0 clients that know nothing of Service Bus do, and with requests of their own to
`$management`."""

RHEA_ONLY: dict[str, dict[str, object]] = {"modified-not-failed": {}, "credit-one-by-one": {}}
PROTON_ONLY: dict[str, dict[str, object]] = {"send-batch-unmarked": {}, "dead-letter": {}}
REACTOR_ONLY: dict[str, dict[str, object]] = {"both-ways-at-once": {}, "same-name-again": {}}
"""What one of these clients alone can say, or cannot, or does in a way of its own."""

JMS: dict[str, dict[str, object]] = {
    "send-and-receive": {},
    "client-acknowledge": {},
    "browse": {},
    "browse-pages": {},
    "browse-dead-letters": {},
    "browse-beside-a-consumer": {},
    "selector-refused": {},
    "topic-refused": {},
    "anonymous-refused": {},
}
"""What Qpid JMS does."""

OFFICIAL = {**ROUND_TRIP, **CHANGED_PROPERTIES, **LIMITS}

CLIENTS: dict[str, dict[str, dict[str, object]]] = {
    "python-sync": {**ROUND_TRIP, **DEAD_LETTER_QUEUE, **DELIVERY_ANNOTATIONS, **LIMITS, **PYTHON_ONLY},
    "python-aio": {**ROUND_TRIP, **DEAD_LETTER_QUEUE, **DELIVERY_ANNOTATIONS, **LIMITS, **PYTHON_ONLY},
    "python-7.14.3": ROUND_TRIP,
    "python-7.13.0b1": {"delete-messages": {}, "purge-messages": {}},
    "proton-blocking": {**PLAIN_AMQP, **PROTON_ONLY},
    "proton-reactor": {**PLAIN_AMQP, **PROTON_ONLY, **REACTOR_ONLY},
    "javascript": {**OFFICIAL, **DEAD_LETTER_QUEUE, **DELIVERY_ANNOTATIONS},
    "rhea": {**PLAIN_AMQP, **RHEA_ONLY},
    "go": OFFICIAL,
    "java": OFFICIAL,
    "jms": JMS,
}


LOW_VOLUME = ["low-volume.in-turn", "low-volume.cached-elsewhere", "low-volume.waiting"]
"""The queues of `test_low_volume.py`."""

CONCURRENT = {name: f"concurrent.{name}" for name in ("peek", "renew-and-settle", "renewer", "aio")}
"""The queues of `test_python_concurrent.py`, by what is done with them."""
LOCK_RENEWED_S = 12
"""Their locks: a little longer than the ten seconds before the end in which the Python client renews without
a pause."""

LOGINS = ["logins"]
"""The queue of `test_logins.py`."""

DEMO = "demo"
"""The queue of `test_demo.py`."""


def queue_name(client: str, scenario: str) -> str:
    """The queue that is this client's alone for this scenario. `unknown-queue` has none."""
    return f"{client}.{scenario}"


def all_queues() -> list[dict[str, object]]:
    """Every queue that some scenario needs, as the configuration file takes them."""
    of_scenarios = [
        queue(queue_name(client, scenario), **{"PartitionCount": 16, **properties})
        for client, scenarios in CLIENTS.items()
        for scenario, properties in scenarios.items()
        if scenario != "unknown-queue"
    ]
    others = [queue(name, PartitionCount=16) for name in [*LOW_VOLUME, *LOGINS, DEMO]]
    return (
        of_scenarios
        + others
        + [queue(name, PartitionCount=4, LockDuration=f"PT{LOCK_RENEWED_S}S") for name in CONCURRENT.values()]
    )
