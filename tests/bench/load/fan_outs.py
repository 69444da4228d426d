"""What is published to topics: the rows in which topics are compared, their subscriptions and messages.

Every subscription has one rule. Those that do not match differ from one another, as they do where each tenant
or device has a subscription of its own. Knows neither brokers nor rounds.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from proton import Message

COUNTRY, TENANT, AMOUNT, DEVICE = "de", "tenant-wanted", 50_075, "sensor-wanted-1"
"""The application properties of every message."""
Rule = dict[str, object]
"""A rule's `Properties` in the configuration file."""
POOL_BYTES, POOL_MESSAGES_MAX = 4 << 20, 1_000
MATCHING_FIRST: Final = 0
"""The subscription that gets the messages, if one of many does."""


def matching_rule(country: str = COUNTRY) -> Rule:
    """A rule for the messages with this country: for every message, if none is given."""
    return _sql(f"country = '{country}'")


def mixed_rule(number: int) -> Rule:
    """The rule of one of many subscriptions, of which only the first one gets the messages: in each ten,
    seven correlation filters, two SQL filters with an equality, and one with OR, LIKE or a range."""
    if number == MATCHING_FIRST:
        return {"FilterType": "Correlation", "CorrelationFilter": {"Properties": {"tenant": TENANT}}}
    if number % 10 < 7:
        tenant = {"Properties": {"tenant": f"tenant-{number}"}}
        return {"FilterType": "Correlation", "CorrelationFilter": tenant}
    if number % 10 < 9:
        return _sql(f"tenant = 'tenant-{number}' AND amount > {number % 40}")
    return _sql(
        (
            f"tenant = 'tenant-{number}' OR device = 'sensor-{number}'",
            f"device LIKE 'sensor-{number}-%'",
            f"amount > {100 * number} AND amount <= {100 * number + 50}",
        )[number // 10 % 3]
    )


def _sql(expression: str) -> Rule:
    return {"FilterType": "Sql", "SqlFilter": {"SqlExpression": expression}}


@dataclass(slots=True, frozen=True)
class FanOut:
    """A topic, its subscriptions, and the messages that it gets."""

    name: str
    entity: str
    """The name of the topic at the broker."""
    body_bytes: int
    subscriptions: int
    matching: int
    """How many subscriptions get each message: the first ones, or all."""
    window: int
    """How many messages a sender leaves unacknowledged, and a receiver unsettled."""
    receive_window: int
    rule: Callable[[int], Rule] = lambda _: matching_rule()
    """The rule of each subscription, by its number."""
    share: float = 1.0
    """The number of messages, as a share of that of the other rows: fewer where each goes to many."""
    beside_peers: bool = True

    def subscription(self, number: int) -> str:
        """The name of a subscription; a queue of its own at other brokers."""
        return f"{self.entity}-{number:04}"

    def messages(self, country: str = COUNTRY) -> list[bytes]:
        """A pool of messages with different bodies, the same for each run and broker."""
        dice = random.Random(f"fan-out {self.name}")
        count = min(POOL_MESSAGES_MAX, POOL_BYTES // self.body_bytes)
        return [self._message(dice, number, country) for number in range(count)]

    def _message(self, dice: random.Random, number: int, country: str) -> bytes:
        message = Message(
            body=dice.randbytes(self.body_bytes),
            durable=True,
            inferred=True,
            properties={"country": country, "tenant": TENANT, "amount": AMOUNT, "device": DEVICE},
        )
        message.id = f"message-{number:08}"
        return bytes(message.encode())


SINGLE: Final = FanOut("1 KiB to 1", "single", 1_024, 1, 1, 500, 500)
THOUSAND: Final = FanOut(
    "1 KiB to 1 of 1,000", "thousand", 1_024, 1_000, 1, 500, 500, mixed_rule, beside_peers=False
)
FIVE: Final = FanOut("1 KiB to 5", "five", 1_024, 5, 5, 500, 500, share=0.5)
FIFTY: Final = FanOut("64 KiB to 50", "fifty", 65_536, 50, 50, 32, 8, share=0.01)
FAN_OUTS: Final = (SINGLE, THOUSAND, FIVE, FIFTY)
TEN: Final = FanOut("topic to 10 subscriptions", "ten", 1_024, 10, 10, 500, 500, share=0.4)
"""A row among those of the shapes, not of the topics."""
