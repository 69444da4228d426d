"""The figures to hold: what each means, what is expected of it, its floor and its goal.

Knows nothing of how figures are measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tests.bench.load.figure import Figure, Reference

SEND = Figure(
    "send",
    "messages/s",
    "acknowledged after fsync: one connection, 500 unacknowledged at most",
    "above the peer: a commit per tick and partition covers some 30 messages, and no message is decoded",
    1.75,
    2.5,
    Reference.PEER,
    more_is_better=True,
)
RECEIVE = Figure(
    "receive",
    "messages/s",
    (
        "received, accepted unsettled and settled by the broker: one connection, 500 granted or "
        "unconfirmed at most"
    ),
    "faster than sending: a completion is a small record, and one disposition covers a run of messages",
    1.5,
    2.0,
    Reference.PEER,
    more_is_better=True,
)
EIGHT_CONNECTIONS = Figure(
    "eight_connections",
    "messages/s",
    "sent and completed: 8 connections, each sending and receiving on the one queue at once",
    "about the inverse of what sending and receiving cost together: one event loop does both",
    1.5,
    2.5,
    Reference.PEER,
    more_is_better=True,
)
TRANSACTIONS = Figure(
    "transactions",
    "messages/s",
    "sent in transactions of 10 and committed: 8 connections, one transaction at a time on each",
    "a fifth of sending: a state with each transfer and each outcome, and three round trips for ten messages",
)
DETECTED = Figure(
    "duplicates_new",
    "messages/s",
    "sent to a queue that detects duplicates, each with an id of its own: one connection, 500 in flight",
    "a third of sending: some 20 µs of Python for each id, and as many partitions as ids in each read",
)
DUPLICATES = Figure(
    "duplicates_dropped",
    "messages/s",
    "sent again and dropped as duplicates: one connection, 500 in flight",
    "a little more than the new ones: nothing is written",
)
DUPLICATES_MEMORY = Figure(
    "duplicates_memory",
    "MiB",
    "to remember 1,000,000 message-ids whose messages are gone, in 16 partitions",
    "82: an object of 48 bytes for each, and its places in a table and a list",
    100.0,
    95.0,
)
SCHEDULED_SENT = Figure(
    "scheduled_sent",
    "messages/s",
    "scheduled by annotation: one connection, 500 in flight",
    "as sending: the same record with one more table",
)
SCHEDULED_RECEIVED = Figure(
    "scheduled_received",
    "messages/s",
    "scheduled for the same moment: received and completed from that moment on, one connection",
    "nearly as receiving: becoming active takes a few µs and a commit for each 1,024 of a partition",
)
SESSIONS = Figure(
    "sessions_drained",
    "messages/s",
    "10,000 sessions of 10 messages each, accepted, received and completed in order: 8 connections",
    "a tenth of receiving: four round trips for each session",
)
SESSIONS_TIME = Figure(
    "sessions_time",
    "×",
    "how much longer draining 10,000 sessions takes than 1,000",
    "10: each session takes the same time, however many there are",
    12.0,
    11.0,
)
SESSIONS_MEMORY = Figure(
    "sessions_memory",
    "×",
    "how much more memory 10,000 sessions take than 1,000, beyond that of an idle broker",
    "8: some of it does not depend on the number of sessions",
    12.0,
    10.0,
)
SEND_LATENCY = Figure(
    "send_latency",
    "µs",
    (
        "median from the first byte of a message to its acknowledgement, one at a time, against a "
        "write+fdatasync of the same bytes"
    ),
    "one fdatasync, two loopback trips, a thread's wake-up and a few dozen µs of Python",
    3.0,
    1.5,
    Reference.DISK,
)
PEER_SEND_LATENCY = Figure(
    "peer_send_latency", "µs", "the same at the peer", "above the disk's own: it syncs too"
)
MEMORY_WAITING = Figure(
    "memory_waiting",
    "MiB",
    "resident memory with 1,000,000 waiting messages of 1 KiB",
    "some 200 bytes of state for each message, 256 MiB of payloads, and the others on disk",
    800,
    400,
)
MEMORY_WAITING_RESTARTED = Figure(
    "memory_waiting_restarted",
    "MiB",
    "the same after kill -9 and restart",
    "as before it: state is a fold over the log",
    800,
    400,
)
RESTART_KILLED = Figure(
    "restart_killed",
    "s",
    "from starting the process to the first delivery, 1,000,000 messages waiting, after kill -9",
    "reading 1 GiB once, or the checkpoint and what came after it",
    10,
    3,
)
RESTART_STOPPED = Figure(
    "restart_stopped", "s", "the same after a clean stop", "at most as long as after kill -9", 10, 3
)
MEMORY_AT_MARK = Figure(
    "memory_at_mark",
    "% of the mark",
    (
        "most resident memory while a broker with a mark of 512 MiB is full of messages of 1 byte, refuses "
        "sends, and a receiver empties it"
    ),
    "a tenth more: above that, receivers are held back",
    125,
    110,
)
IDLE_MEMORY = Figure(
    "idle_memory",
    "MiB",
    "resident memory, idle, 100 queues of 16 partitions",
    "the interpreter and its libraries: logs are opened when first used",
    200,
    100,
)
IDLE_CPU = Figure(
    "idle_cpu",
    "% of a core",
    "CPU time, idle, 100 queues of 16 partitions",
    "nothing scans, so next to nothing",
    2.0,
    0.5,
)
IDLE_USED_MEMORY = Figure(
    "idle_used_memory",
    "MiB",
    "the same, after 32 messages through each queue",
    "1,600 open partitions: some 20 KiB each above the untouched broker",
    200,
    100,
)
IDLE_USED_CPU = Figure(
    "idle_used_cpu", "% of a core", "the same, after 32 messages through each queue", "as untouched", 2.0, 0.5
)
IDLE_CONNECTIONS = Figure(
    "idle_connections",
    "MiB",
    "resident memory with 5,000 open connections",
    "some 40 KiB each: mostly proton's transport, with an input and an output buffer of 16 KiB",
    600,
    250,
)
IDLE_RECEIVERS = Figure(
    "idle_receivers",
    "MiB",
    "resident memory with 5,000 connections, each with a receiver waiting on an empty queue",
    "some 10 KiB more each than without the link",
)
DISK_DRAINED = Figure(
    "disk_drained",
    "MiB",
    "what the data folder takes 10 s after the last of 1,000,000 messages of 1 KiB was consumed",
    (
        "768 KiB of garbage and a checkpoint in each of 16 partitions at most, and the reserves; the floor "
        "is 2 MiB for each partition"
    ),
    32,
    16,
)
DISK_DEFERRED = Figure(
    "disk_deferred",
    "MiB",
    "the same with 64 deferred messages of 3 bytes that were sent before",
    "as drained: they are written again, and everything else is given back",
    32,
    16,
)

CHECKPOINTS = Figure(
    "checkpoints",
    "MiB",
    (
        "written to checkpoints for each 64 MiB of log, while messages of 1 KiB pass through a partition "
        "in which 1,000,000 others wait"
    ),
    (
        "what has changed since the checkpoint before the last, some 25 bytes for each message sent, and "
        "40 bytes for each 1,024 that wait"
    ),
    8,
    4,
)

LIGHT_ALONE = Figure(
    "light_alone",
    "ms",
    "99th percentile of a light sender's messages, one at a time, alone",
    "a few times the median: the disk's own tail",
)
LIGHT_BESIDE_8 = Figure(
    "light_beside_8",
    "ms",
    (
        "the same beside 8 connections that send as fast as they can, 500 unacknowledged at most each; "
        "messages without a key"
    ),
    "some five turns of a busy event loop of 1 to 2 ms each, and the disk",
    20,
    8,
)
LIGHT_KEYED_BESIDE_8 = Figure(
    "light_keyed_beside_8",
    "ms",
    "the same with a partition key",
    "as without: keys of the heavy senders would not matter either",
    20,
    8,
)
LIGHT_BESIDE_50 = Figure(
    "light_beside_50",
    "ms",
    "beside 50 such connections, without a key",
    "as beside 8, but for 50 sockets to read and answer",
    60,
    20,
)
LIGHT_KEYED_BESIDE_50 = Figure(
    "light_keyed_beside_50", "ms", "the same with a partition key", "as without", 60, 20
)
HEAVY_8 = Figure(
    "heavy_8",
    "messages/s",
    "what the 8 heavy senders send meanwhile",
    "as much as one connection that sends alone",
)
HEAVY_50 = Figure("heavy_50", "messages/s", "what the 50 send meanwhile", "as much as 8")

NEIGHBOUR = Figure(
    "neighbour",
    "times",
    (
        "median of a light sender's messages beside a throttled namespace of the same broker, which is "
        "offered 3,000 messages/s for 30 s and takes 1,000, compared with alone"
    ),
    "a tenth of the event loop is in use, and the disk syncs for both",
    1.25,
    1.1,
)

OUTPUT_ATTACK_MEMORY = Figure(
    "output_attack_memory",
    "MiB",
    (
        "memory taken by 110 receivers that grant credit for 10,000 messages of 64 KiB each and never "
        "read, beside 500 idle connections"
    ),
    (
        "some 750 KiB each: what is written, in the engine and on the shelf, where a client that has not "
        "read yet has 256 KiB of room"
    ),
    288,
    128,
)
OUTPUT_ATTACK_ROUND_TRIP = Figure(
    "output_attack_round_trip",
    "ms",
    "the longest that another client waited meanwhile to send, receive and complete a message",
    "a few turns of the event loop, with reads of whole frames from the log among them",
    50,
    10,
)
OUTPUT_ATTACK_PEEK = Figure(
    "output_attack_peek",
    "ms",
    "the longest that it waited to peek at 16 messages of 64 KiB",
    "1 MiB read from the log and encoded",
    1_000,
    100,
)
HALF_HEADERS_HEALTH = Figure(
    "half_headers_health",
    "ms",
    "longest wait for `/health` on a new connection beside 1,000 connections with half a header",
    "a few ms, and more when a thousand of them end at once; orchestrators give a probe 1 s",
    1_000,
    250,
)
HALF_HEADERS_ADMINISTRATION = Figure(
    "half_headers_administration",
    "ms",
    "the same for a list of queues",
    "as health: whoever has waited longest makes room",
    2_000,
    500,
)
HALF_HEADERS_STALL = Figure(
    "half_headers_stall",
    "ms",
    "longest wait of an AMQP client for an answer that only the event loop delays, meanwhile",
    "closing a thousand connections at once: some 30 µs each",
    250,
    50,
)
HALF_HEADERS_MEMORY = Figure(
    "half_headers_memory",
    "MiB",
    "memory beyond what the broker had before, meanwhile",
    "some 15 KiB for each connection",
    100,
    30,
)
MANY_MS = 200
"""The most that an answer about 10,000 queues may take."""
MANY_SCRAPE = Figure(
    "many_scrape",
    "ms",
    "`/metrics` of 10,000 queues that nobody has used",
    "some 10 µs for the gauges of each",
    MANY_MS,
    100,
)
MANY_HEALTH = Figure("many_health", "ms", "`/health` of the same", "as the scrape", MANY_MS, 100)
MANY_LIST = Figure(
    "many_list",
    "ms",
    "all of the same in the administration API, in pages of 100 over one connection",
    "some 15 µs for each entry, and 20 MB over HTTP",
    MANY_MS,
    100,
)
MANY_FIRST_SCRAPE = Figure(
    "many_first_scrape",
    "ms",
    "the first `/metrics` after a restart, when all 160,000 partitions hold messages that expire",
    "2 µs for the note of each partition, and a scrape",
    MANY_MS,
    100,
)
MANY_FIRST_LIST = Figure(
    "many_first_list",
    "ms",
    "the first list of all queues after that",
    "as later ones",
    MANY_MS,
    100,
)
MANY_USED_LIST = Figure(
    "many_used_list", "ms", "the list of all queues after that", "as the list of unused ones", MANY_MS, 100
)
MANY_START = Figure(
    "many_start",
    "ms",
    "how much longer such a start takes than one without messages",
    "2 µs for each note, and 3 µs for the room that it needs",
    3_000,
    1_000,
)
MANY_STALL = Figure(
    "many_stall",
    "ms",
    "longest wait of an AMQP client for an answer that needs only the event loop, meanwhile",
    "a few slices of 1 ms",
    50,
    10,
)
MANY_HOLD = Figure(
    "many_hold",
    "ms",
    "most processor time that the event loop uses during one such wait",
    "four or five turns of the loop until it is answered, each with a slice of 1 ms at most",
    10,
    5,
)
MANY_MEMORY = Figure(
    "many_memory",
    "KiB",
    "memory for each of the 10,000 queues",
    "description, counters and 16 sleeping partitions",
    12,
    8,
)
MANY_COUNTERS = Figure(
    "many_counters",
    "KiB",
    "memory for the counters of each of 10,000 queues, all of them in use",
    "some 30 integers, and the buckets of a histogram",
    4,
    3,
)
SINGLE_START = Figure(
    "single_start",
    "s",
    "start of a broker with 10,000 queues of one partition each, until it serves",
    "1.5 s for Python, and 0.1 ms for the document of each",
    5,
    3,
)
SINGLE_MEMORY = Figure(
    "single_memory",
    "MiB",
    "resident memory of that broker, unused",
    "that of a broker without queues, and 6 KiB for each",
    400,
    200,
)
SINGLE_SCRAPE = Figure("single_scrape", "ms", "its `/metrics`", "as that of `many_scrape`", MANY_MS, 100)
SINGLE_PAGE = Figure(
    "single_page",
    "ms",
    "a page of 100 of its queues in the administration API",
    "one hundredth of `many_list`",
    MANY_MS,
    20,
)
ATTACK_MEMORY_MIB, ATTACK_MEMORY_GOAL_MIB = 64, 32
"""300 connections without credentials may send 64 KiB each, 19 MiB; the rest is overhead in proton and
Python.
"""
ATTACK_STALL_MS, ATTACK_STALL_GOAL_MS = 50, 20


def _attack(name: str, who: str, expected: str) -> tuple[Figure, Figure]:
    """Both figures of one attack (`attacks.py`)."""
    return (
        Figure(
            f"{name}_memory",
            "MiB",
            f"most memory beyond what was there before: {who}",
            expected,
            ATTACK_MEMORY_MIB,
            ATTACK_MEMORY_GOAL_MIB,
        ),
        Figure(
            f"{name}_stall",
            "ms",
            "longest wait of an unrelated client for an answer that needs only the event loop, meanwhile",
            "some slices of 2 ms, and the work of one frame",
            ATTACK_STALL_MS,
            ATTACK_STALL_GOAL_MS,
        ),
    )


ATTACKS: Mapping[str, tuple[Figure, Figure]] = {
    "nothing": _attack(
        "nothing", "no attack: what the machine itself does to the figures below", "nothing, and a few ms"
    ),
    "unfinished_transfers": _attack(
        "unfinished_transfers",
        "40 connections without credentials, each with 15 unfinished transfers of 4 MB to `$cbs`",
        "40 times 64 KiB and a connection each",
    ),
    "large_audiences": _attack(
        "large_audiences",
        "200 tokens for audiences of 3.9 MB, put with a key that may only send",
        "a request of 64 KiB at a time",
    ),
    "nested_lists": _attack(
        "nested_lists",
        "a list of 4 million lists sent to `$cbs` without credentials, again and again",
        "64 KiB, for as long as it takes to refuse it",
    ),
    "short_idle_timeouts": _attack(
        "short_idle_timeouts",
        "300 connections that ask for a sign of life every millisecond",
        "they are closed",
    ),
    "many_attaches": _attack(
        "many_attaches",
        "6,000 attaches in one write without credentials, again and again",
        "32 links at a time",
    ),
    "large_opens": _attack(
        "large_opens",
        "300 connections without credentials that say all they may: values, links, parts of messages",
        "some 100 KiB each",
    ),
    "authorized_attaches": _attack(
        "authorized_attaches",
        "5,000 attaches and their end in one write, with a key",
        "some 2 KiB for each link",
    ),
    "authorized_lists": _attack(
        "authorized_lists",
        "requests to `$management` of as many values as are permitted, with a key",
        "16 MiB: what a connection may have in flight",
    ),
}
"""Memory and stall, by the attack's name."""

STALL_P99_MS, STALL_P99_GOAL_MS = 20, 8
STALL_WORST_MS, STALL_WORST_GOAL_MS = 50, 20


def _stall(name: str, what: str) -> tuple[Figure, Figure]:
    """Both figures of one step (`stalls.py`)."""
    meaning = f"wait of an unrelated client for an answer that needs only the event loop, while {what}"
    return (
        Figure(
            f"stall_{name}_p99",
            "ms",
            f"99th percentile of the {meaning}",
            "a few slices of 2 to 3 ms",
            STALL_P99_MS,
            STALL_P99_GOAL_MS,
        ),
        Figure(
            f"stall_{name}_worst",
            "ms",
            f"the longest {meaning}",
            "the largest piece of work that is not divided: one cycle of a partition, some 10 ms",
            STALL_WORST_MS,
            STALL_WORST_GOAL_MS,
        ),
    )


def _stalls(prefix: str, entity: str, *, are_scheduled: bool = False) -> dict[str, tuple[Figure, Figure]]:
    """The figures of all steps with one kind of entity."""
    steps = {
        "fill": f"{entity} of one partition is filled with 1,000,000 messages, and checkpoints are made",
        "browse": f"all messages of {entity} are paged through",
        "open_again": f"the partition of {entity} is opened and its log replayed, after kill -9",
        "empty": f"nine of ten messages of {entity} are received and completed, and the rest is compacted",
        "delete": f"{entity} is deleted with more than 1,000,000 messages",
    }
    if are_scheduled:
        steps["come_due"] = f"1,000,000 messages of {entity} come due together"
    return {step: _stall(prefix + step, what) for step, what in steps.items()}


STALLS: Mapping[str, Mapping[str, tuple[Figure, Figure]]] = {
    "plain": _stalls("", "a queue"),
    "sessions": _stalls("sessions_", "a queue with 50,000 message sessions"),
    "duplicates": _stalls("duplicates_", "a queue that detects duplicates"),
    "schedules": _stalls("schedules_", "a queue whose messages are scheduled", are_scheduled=True),
    "topic": _stalls("topic_", "a topic whose two subscriptions get all messages"),
    "bursts": {
        "large_batches": _stall("large_batches", "90,000 tiny messages are sent in a few batches"),
        "settle_at_once": _stall("settle_at_once", "90,000 messages are received and settled at once"),
        "locks_end": _stall("locks_end", "100,000 locks are renewed together and end together"),
    },
}
"""99th percentile and worst, by kind of entity (`backlogs.py`) and step."""

TRAFFIC: Sequence[Figure] = (
    SEND, RECEIVE, EIGHT_CONNECTIONS, TRANSACTIONS, SEND_LATENCY, PEER_SEND_LATENCY
)  # fmt: skip
WAITING: Sequence[Figure] = (MEMORY_WAITING, MEMORY_WAITING_RESTARTED, RESTART_KILLED, RESTART_STOPPED)
AT_MARK: Sequence[Figure] = (MEMORY_AT_MARK,)
IDLE: Sequence[Figure] = (IDLE_MEMORY, IDLE_CPU, IDLE_USED_MEMORY, IDLE_USED_CPU)
DISK_SPACE: Sequence[Figure] = (DISK_DRAINED, DISK_DEFERRED)
CHECKPOINT_COST: Sequence[Figure] = (CHECKPOINTS,)
FEATURES: Sequence[Figure] = (DETECTED, DUPLICATES, SCHEDULED_SENT, SCHEDULED_RECEIVED)
REMEMBERED: Sequence[Figure] = (DUPLICATES_MEMORY,)
IN_SESSIONS: Sequence[Figure] = (SESSIONS, SESSIONS_TIME, SESSIONS_MEMORY)
CONNECTIONS: Sequence[Figure] = (IDLE_CONNECTIONS, IDLE_RECEIVERS)
MANY: Sequence[Figure] = (
    MANY_SCRAPE, MANY_HEALTH, MANY_LIST, MANY_FIRST_SCRAPE, MANY_FIRST_LIST, MANY_USED_LIST, MANY_START,
    MANY_STALL, MANY_HOLD, MANY_MEMORY, MANY_COUNTERS
)  # fmt: skip
SINGLE: Sequence[Figure] = (SINGLE_START, SINGLE_MEMORY, SINGLE_SCRAPE, SINGLE_PAGE)
HALF_HEADERS: Sequence[Figure] = (
    HALF_HEADERS_HEALTH,
    HALF_HEADERS_ADMINISTRATION,
    HALF_HEADERS_STALL,
    HALF_HEADERS_MEMORY,
)
FAIRNESS: Sequence[Figure] = (
    LIGHT_ALONE, LIGHT_BESIDE_8, LIGHT_KEYED_BESIDE_8, HEAVY_8, LIGHT_BESIDE_50, LIGHT_KEYED_BESIDE_50,
    HEAVY_50
)  # fmt: skip
NEIGHBOURS: Sequence[Figure] = (NEIGHBOUR,)
OUTPUT_ATTACK: Sequence[Figure] = (OUTPUT_ATTACK_MEMORY, OUTPUT_ATTACK_ROUND_TRIP, OUTPUT_ATTACK_PEEK)
ATTACKED: Sequence[Figure] = tuple(figure for pair in ATTACKS.values() for figure in pair)
STALLED: Sequence[Figure] = tuple(
    figure for steps in STALLS.values() for pair in steps.values() for figure in pair
)
FIGURES: Mapping[str, Figure] = {
    figure.name: figure
    for figure in (
        *TRAFFIC,
        *WAITING,
        *AT_MARK,
        *IDLE,
        *DISK_SPACE,
        *CHECKPOINT_COST,
        *FEATURES,
        *REMEMBERED,
        *IN_SESSIONS,
        *CONNECTIONS,
        *MANY,
        *SINGLE,
        *FAIRNESS,
        *NEIGHBOURS,
        *OUTPUT_ATTACK,
        *HALF_HEADERS,
        *ATTACKED,
        *STALLED,
    )
}
