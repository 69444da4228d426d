"""What concerns a partition or a client as a whole, and the answer to operations that fail."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.base.errors import Reason
from broker.entities.descriptions import EntityDescription
from broker.identifiers import LockToken

# --- operations ---------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Update:
    """The entity's settings have changed. Answered with `Updated`.

    A partition that is down remembers the description and applies it once it is back.
    """

    description: EntityDescription
    cookie: object = None


@dataclass(slots=True)
class Detach:
    """The client is gone: its demand ends, and its unsettled messages stay locked until their locks run out.

    `unseen` are the locked messages that it never saw: they go back at once, without counting a delivery.
    Never answered.
    """

    unseen: Sequence[LockToken] = ()


# --- answers ------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Failed:
    """Nothing of the operation was done."""

    reason: Reason
    description: str
    cookie: object


@dataclass(slots=True)
class Updated:
    """The partition uses the new settings."""

    cookie: object


@dataclass(slots=True)
class Unavailable:
    """The partition went down: the client's demand and locks in it are void. Sent once to each attached
    client."""

    partition: int
    for_good: bool = False
    """The partition will not come back while the broker runs, so there is no use in asking again."""
