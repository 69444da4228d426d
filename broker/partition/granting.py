"""Grants: the `Locked` answers of a cycle, and the leases behind them. Pure."""

from __future__ import annotations

from broker.identifiers import ClientId
from broker.operations.receiving import Locked
from broker.partition.cycle import Grant, write_locked
from broker.partition.references import Lease
from broker.partition.workspace import Workspace


def new_grant(
    space: Workspace, client: ClientId, lease: Lease, *, deferred: bool = False, cookie: object = None
) -> Grant:
    """Add an answer that gives a client the messages of a lease."""
    answer = Locked(
        space.number,
        space.subqueues[lease.subqueue].name,
        [],
        [],
        [],
        [],
        [],
        [],
        [],
        lease.until_ms,
        deferred,
        cookie,
    )
    grant = Grant(client, lease, answer)
    space.cycle.grants.append(grant)
    space.cycle.granted_leases += 1
    space.answer(client, answer)
    return grant


def write_grant(space: Workspace, grant: Grant) -> None:
    """Write the columns of the answer, and list the messages that must be read from the log."""
    write_locked(grant.answer, grant.lease)
    if b"" in grant.answer.messages:
        space.cycle.holes.append((grant.answer.messages, list(grant.lease.references)))


def close_grant(space: Workspace, client: ClientId, subqueue: int) -> None:
    """The client has withdrawn: its answer grows no further in this cycle."""
    grant = space.cycle.open_grants.pop((client, subqueue), None)
    if grant is not None:
        grant.open = False


def has_granted_enough(space: Workspace) -> bool:
    """Whether the cycle has handed out as much of the current subqueue as allowed, or to as many clients."""
    cycle, bounds = space.cycle, space.bounds
    return (
        cycle.has_handed_out
        or cycle.granted_bytes >= bounds.granted_bytes_max
        or cycle.granted >= bounds.granted_max
        or cycle.granted_leases >= bounds.granted_leases_max
    )
