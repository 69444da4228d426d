"""The list of scenarios for all clients, and the queue of each client for each scenario.

A scenario is a name and the settings of its queue. Each client has a separate queue per scenario, so that one
failure never causes another. Programs in other languages use the same names: they print one line per scenario
they ran.
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
"""Scenarios for every official client: names and queue settings."""

CHANGED_PROPERTIES: dict[str, dict[str, object]] = {
    "abandon-with-properties": {},
    "defer-with-properties": {},
    "dead-letter-with-properties": {},
}
"""For clients that can change application properties while settling: all official clients except Python's."""

DEAD_LETTER_QUEUE: dict[str, dict[str, object]] = {
    "dead-letter-queue-leads-no-further": {"MaxDeliveryCount": 2}
}
"""For clients that can learn of a refused dead-lettering: Java's cannot (AMQP contract 6.2)."""

SCHEDULED: dict[str, dict[str, object]] = {"schedule-and-cancel": {}}
"""For the current official clients."""

DELIVERY_ANNOTATIONS: dict[str, dict[str, object]] = {"delivery-annotations": {}}
"""For clients that expose delivery-annotations."""

LIMITS: dict[str, dict[str, object]] = {
    "max-delivery-count": {"MaxDeliveryCount": 2},
    "time-to-live": {"DeadLetteringOnMessageExpiration": True},
    "large-message": {},
    "message-too-large": {},
    "unknown-queue": {},
    "wrong-key": {},
}
"""Scenarios in which the broker intervenes or refuses."""

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
    "duplicates-dropped": {
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
    },
    "duplicates-forgotten": {
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT5S",
    },
    "scheduled-by-annotation": {},
    "scheduled-messages-live-from-their-time": {"DeadLetteringOnMessageExpiration": True},
}
"""In-depth checks of the wire behaviour, with one client on behalf of all."""

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
    "selector": {},
    "selector-settled": {},
    "selector-refused": {},
}
"""Scenarios for AMQP 1.0 clients that know nothing of Service Bus, including their own requests to
`$management`.
"""

JAVASCRIPT_ONLY: dict[str, dict[str, object]] = {
    "duplicates": {
        "RequiresDuplicateDetection": True,
        "DuplicateDetectionHistoryTimeWindow": "PT10M",
    }
}
RHEA_ONLY: dict[str, dict[str, object]] = {
    "modified-not-failed": {},
    "credit-one-by-one": {},
    "transaction": {},
}
PROTON_ONLY: dict[str, dict[str, object]] = {"send-batch-unmarked": {}, "dead-letter": {}}
REACTOR_ONLY: dict[str, dict[str, object]] = {"both-ways-at-once": {}, "same-name-again": {}}
"""What only one of these clients can express, or does in its own way."""

JMS: dict[str, dict[str, object]] = {
    "send-and-receive": {},
    "client-acknowledge": {},
    "browse": {},
    "browse-pages": {},
    "browse-dead-letters": {},
    "browse-beside-a-consumer": {},
    "selector": {},
    "selector-receive": {},
    "selector-on-ids": {},
    "selector-refused": {},
    "topic-refused": {},
    "anonymous-refused": {},
    "transacted-session": {"PartitionCount": 1},
    "transacted-group": {},
}
"""Scenarios for Qpid JMS."""

TRANSACTIONS: dict[str, dict[str, object]] = {
    "commit": {},
    "roll-back": {},
    "connection-drops": {"LockDuration": f"PT{LOCK_SHORT_S}S"},
    "refusals": {},
    "several-entities": {},
    "named-via": {},
    "plain-entity": {"PartitionCount": 1},
    "too-many": {},
    "schedules": {},
}
"""Scenarios with transactions."""

JAVA_TRANSACTIONS: dict[str, dict[str, object]] = {
    "transaction-commit": {},
    "transaction-roll-back": {},
    "transaction-schedules": {},
    "transaction-refusals": {},
    "transaction-in-a-session": {"RequiresSession": True},
    "transaction-over-entities": {},
    "transaction-drains-a-full-queue": {"PartitionCount": 1, "MaxSizeInMegabytes": 1},
}
"""Of the official clients, those for Java and .NET have transactions."""

SESSIONS: dict[str, dict[str, object]] = {"sessions": {"RequiresSession": True}}
"""For the official clients other than Python's, which has `test_sessions.py`."""

OFFICIAL = {**ROUND_TRIP, **CHANGED_PROPERTIES, **SCHEDULED, **SESSIONS, **LIMITS}
OFFICIAL_PYTHON = {**ROUND_TRIP, **DEAD_LETTER_QUEUE, **SCHEDULED, **DELIVERY_ANNOTATIONS, **LIMITS}

CLIENTS: dict[str, dict[str, dict[str, object]]] = {
    "python-sync": {**OFFICIAL_PYTHON, **PYTHON_ONLY},
    "python-aio": {**OFFICIAL_PYTHON, **PYTHON_ONLY},
    "python-7.14.3": ROUND_TRIP,
    "python-7.13.0b1": {"delete-messages": {}, "purge-messages": {}},
    "proton-blocking": {**PLAIN_AMQP, **PROTON_ONLY},
    "proton-reactor": {**PLAIN_AMQP, **PROTON_ONLY, **REACTOR_ONLY},
    "proton-transactions": TRANSACTIONS,
    "javascript": {**OFFICIAL, **JAVASCRIPT_ONLY, **DEAD_LETTER_QUEUE, **DELIVERY_ANNOTATIONS},
    "rhea": {**PLAIN_AMQP, **RHEA_ONLY},
    "go": OFFICIAL,
    "java": {**OFFICIAL, **JAVA_TRANSACTIONS},
    "jms": JMS,
}


LOW_VOLUME = ["low-volume.in-turn", "low-volume.cached-elsewhere", "low-volume.waiting"]
"""The queues of `test_low_volume.py`."""

CONCURRENT = {name: f"concurrent.{name}" for name in ("peek", "renew-and-settle", "renewer", "aio")}
"""The queues of `test_python_concurrent.py`, by the operations performed on them."""
LOCK_RENEWED_S = 12
"""Lock duration of these queues: a little longer than the last ten seconds of a lock, in which the Python
client renews without a pause.
"""

LOGINS = ["logins"]
"""The queue of `test_logins.py`."""

DESTINATIONS: dict[str, dict[str, object]] = {
    "proton-transactions.several-entities.to": {},
    "proton-transactions.named-via.to": {"PartitionCount": 1},
    "java.transaction-over-entities.to": {"PartitionCount": 4},
    "java.transaction-over-entities.too": {"PartitionCount": 1},
    "java.transaction-drains-a-full-queue.to": {"PartitionCount": 4},
}
"""Queues to which the scenarios whose names they begin with send through another one."""

DEMO = "demo"
"""The queue of `test_demo.py`."""


def queue_name(client: str, scenario: str) -> str:
    """The queue of this client for this scenario. `unknown-queue` has none."""
    return f"{client}.{scenario}"


def all_queues() -> list[dict[str, object]]:
    """Every queue that some scenario needs, in the configuration file's format."""
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
        + [queue(name, **{"PartitionCount": 16, **properties}) for name, properties in DESTINATIONS.items()]
        + [queue(name, PartitionCount=4, LockDuration=f"PT{LOCK_RENEWED_S}S") for name in CONCURRENT.values()]
    )
