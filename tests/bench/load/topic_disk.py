"""How often a payload is on the disk when fifty subscriptions have it: after publishing and checkpoints, and
after compaction.

The topic has one partition, so what a partition adds to its messages on the disk counts once: zeros ahead
of the end of its log, and the garbage that it tolerates at rest. Knows neither figures nor rounds.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from tests.bench.load import traffic
from tests.bench.load.fan_outs import FIFTY, FanOut, Rule, matching_rule
from tests.bench.load.topic_brokers import running_partibus
from tests.bench.load.traffic import Load

GARBAGE_EACH = 3
"""Messages that are published and removed for each one that stays. A log is compacted when it has more than
twice as much garbage as live messages."""
AT_REST_S = 10.0
MARK_BYTES = 64
"""The end of a random body, which is nowhere else."""
GARBAGE_COUNTRY = "fr"


def _kept_or_garbage(number: int) -> Rule:
    return matching_rule() if number < FIFTY.matching else matching_rule(GARBAGE_COUNTRY)


KEPT = FanOut("kept", "kept", FIFTY.body_bytes, 51, 50, FIFTY.window, FIFTY.window, _kept_or_garbage)
"""Fifty subscriptions for the messages that stay, and one for the others."""


@dataclass(slots=True, frozen=True)
class OnDisk:
    """What the log takes for messages that fifty subscriptions have."""

    published: float
    """Its bytes for each byte of payload, when the last message has been acknowledged."""
    compacted: float
    """The same after compaction, with the garbage that the log tolerates."""
    copies: float
    """How often each payload is in the log after compaction."""


def on_disk(folder: Path, count: int) -> OnDisk:
    """Publish `count` messages of 64 KiB to fifty subscriptions. Then publish others that only one receives
    and completes: the log is compacted to get rid of those."""
    message = KEPT.messages()[0]
    kept = Load([message], KEPT.body_bytes, KEPT.window)
    garbage = Load(KEPT.messages(GARBAGE_COUNTRY)[1:], KEPT.body_bytes, KEPT.window)
    with running_partibus(folder, [KEPT], partitions=1) as broker, broker.topic(KEPT) as topic:
        before = broker.disk_bytes
        traffic.send(topic.publish, count, load=kept)
        published = broker.disk_bytes
        traffic.send(topic.publish, count * GARBAGE_EACH, load=garbage)
        traffic.receive(broker.subscription(KEPT, KEPT.matching), count * GARBAGE_EACH, load=garbage)
        time.sleep(AT_REST_S)
        payload = count * KEPT.body_bytes
        assert broker.data is not None
        copies = occurrences(broker.data, message[-MARK_BYTES:]) / count
        return OnDisk((published - before) / payload, (broker.disk_bytes - before) / payload, copies)


def occurrences(folder: Path, mark: bytes) -> int:
    """How often some bytes are in the files below a folder."""
    return sum(path.read_bytes().count(mark) for path in folder.rglob("*") if path.is_file())
