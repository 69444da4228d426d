"""Lock expiry: a delivery whose lock expires has failed, so it is counted and its message becomes available
again. Pure.

AMQP contract 10.3. `locks.py` knows when each lock ends. Locks that were settled or renewed in time do not
expire here. At the maximum delivery count, the message moves to the dead-letter subqueue
(`delivery_count.py`).
"""

from __future__ import annotations

from itertools import islice

from broker.partition import delaying
from broker.partition.delivery_count import failed_delivery, failing_together
from broker.partition.time_to_live import TimeToLive
from broker.partition.workspace import Workspace


def run_out_locks(space: Workspace, time_to_live: TimeToLive, until_ms: int) -> None:
    """End the locks that expire by `until_ms`, up to the cycle's limits. A lease of messages whose changed
    properties take long to merge with a reason ends in several cycles."""
    cycle, ended_max = space.cycle, space.bounds.ended_locks_max
    if cycle.ended_locks >= ended_max:
        return
    at_most = space.bounds.ended_leases_max - cycle.ended_leases
    for lease, subqueue, references in islice(space.locks.run_out(until_ms), at_most):
        cycle.ended_leases += 1
        if lease.is_delay:
            space.locks.take_back(lease, references)
            cycle.ended_locks += len(references)
            cycle.arrived_in.add(subqueue.number)
            delaying.ended(space, subqueue, references)
            time_to_live.give_back(subqueue, references)
        else:
            some = failing_together(space, subqueue, references)
            space.locks.take_back(lease, some)
            cycle.ended_locks += len(some)
            cycle.expired_locks += len(some)
            failed_delivery(space, time_to_live, subqueue, some, None)
            if len(some) < len(references):
                space.locks.end_later(lease)
                return
        if cycle.ended_locks >= ended_max:
            return
