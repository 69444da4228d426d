"""Lock expiry: a delivery whose lock expires has failed, so it is counted and its message becomes available
again. Pure.

AMQP contract 10.3. `locks.py` knows when each lock ends. Locks that were settled or renewed in time do not
expire here. At the maximum delivery count, the message moves to the dead-letter subqueue
(`delivery_count.py`).
"""

from __future__ import annotations

from broker.partition import delaying
from broker.partition.changed_properties import MERGED_AT_ONCE
from broker.partition.dead_lettering import MAX_DELIVERIES
from broker.partition.delivery_count import failed_delivery
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace


def run_out_locks(space: Workspace, time_to_live: TimeToLive, until_ms: int) -> None:
    """End the locks that expire by `until_ms`, up to the cycle's limit."""
    cycle, ended_max = space.cycle, space.bounds.ended_locks_max
    ended = space.locks.run_out(until_ms)
    delayed, merging = 0, MERGED_AT_ONCE
    while (
        cycle.expired_locks + delayed < ended_max
        and merging > 0
        and (next_ended := next(ended, None)) is not None
    ):
        lease, subqueue, references = next_ended
        if lease.is_delay:
            delayed += len(references)
            cycle.arrived_in.add(subqueue.number)
            delaying.ended(space, subqueue, references)
            time_to_live.give_back(subqueue, references)
            continue
        cycle.expired_locks += len(references)
        if subqueue.changed_bytes:
            merging -= space.messages.work.properties.growth(references, MAX_DELIVERIES)[1]
        failed_delivery(space, time_to_live, subqueue, references, None)
