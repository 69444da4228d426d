"""Transactions: sends and settlements in one commit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from broker.operations.sending import Send
from broker.operations.settling import Abandon, Complete, DeadLetter, Defer


@dataclass(slots=True)
class Transact:
    """Carry out a send and settlements together, in one commit: all of them, or none (AMQP contract 8.2).
    Answered with `Transacted`, or with `Failed` if any of them cannot be carried out."""

    send: Send
    """May have no messages. Its cookie is not used, and neither are those of the settlements."""
    settlements: Sequence[Complete | Abandon | Defer | DeadLetter]
    """Their tokens are all different."""
    cookie: object = None
    cancelled: Sequence[int] = ()
    """Scheduled messages to remove."""
    scheduled: Send | None = None
    """Messages to schedule with the sequence numbers that were promised for them …"""
    promised: Sequence[int] = ()
    """… which are these: whole promises, one after the other (`PromiseNumbers`)."""
    transfers: Send | None = None
    """Messages for other entities, with the column DESTINATION. They go to the transfer subqueue."""
    full: str | None = None
    room: int = 0
    """Why the whole entity has no room for the messages unless the transaction makes it, and the bytes that
    it has left; None if it has room."""
    change_id: bytes = b""
    rule_changes: bytes = b""
    """Changes of a topic's rules, and their id: noted until the topic has them. Empty for none."""


@dataclass(slots=True)
class Transacted:
    """Everything in a `Transact` was carried out and is durable."""

    sent: int
    """The number of messages that were sent, also to other entities, or scheduled."""
    cookie: object
