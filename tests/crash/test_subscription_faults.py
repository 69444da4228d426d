"""Every disk call made by a change of a topic's subscriptions or rules fails once, a few times, or from then
on; then the broker restarts.

Whatever the answer: a subscription that the change has nothing to do with keeps every acknowledged message,
once. The change holds if it was acknowledged, and if it was refused it does not hold once that is confirmed.
A message that was acknowledged while the change held is where it sends it.
"""

from __future__ import annotations

import errno
import random

import pytest

from broker.entities.rules import CorrelationFilter, RuleDescription
from broker.entities.topics import SubscriptionSettings, TopicDescription, TopicSettings
from tests.crash.lives import VARIETIES, Life, is_acknowledged
from tests.support.recording_disk import RecordingDisk
from tests.support.rule_messages import stored_with

ALL = RuleDescription("$Default")
NONE = RuleDescription("none", CorrelationFilter(label="nothing has it"))
KEPT, CHANGED = "subscriptions/kept", "subscriptions/changed"
WHAT = ["add a subscription", "remove a subscription", "add a rule", "remove a rule"]


async def first_life(what: str) -> Life:
    """A topic with a subscription that gets everything, and what the change begins with."""
    life = Life(RecordingDisk())
    await life.namespace.load()
    await life.namespace.create_entity("events", TopicSettings())
    subscriptions = life.namespace.subscriptions
    await subscriptions.create("events", "kept", SubscriptionSettings(), [ALL])
    if what != "add a subscription":
        rules = [NONE] if what == "add a rule" else [ALL]
        await subscriptions.create("events", "changed", SubscriptionSettings(), rules)
    return life


async def change(life: Life, what: str) -> bool:
    """Make the change; whether it was acknowledged."""
    subscriptions = life.namespace.subscriptions
    match what:
        case "add a subscription":
            created = subscriptions.create("events", "changed", SubscriptionSettings(), [ALL])
            return await is_acknowledged(created)
        case "remove a subscription":
            return await is_acknowledged(subscriptions.delete("events", "changed"))
        case "add a rule":
            return await is_acknowledged(subscriptions.add_rule("events", "changed", ALL))
    return await is_acknowledged(subscriptions.remove_rule("events", "changed", "$Default"))


def gets(life: Life) -> bool | None:
    """Whether the subscription that changes gets every message; None if there is none."""
    topic = life.namespace.describe("events")
    assert isinstance(topic, TopicDescription)
    subscription = topic.subscription("changed")
    return None if subscription is None else any(rule.name == ALL.name for rule in subscription.rules)


BEFORE = {WHAT[0]: None, WHAT[1]: True, WHAT[2]: False, WHAT[3]: True}
AFTER = {WHAT[0]: True, WHAT[1]: None, WHAT[2]: True, WHAT[3]: False}


class Story:
    """What clients were told."""

    def __init__(self) -> None:
        self.acknowledged: set[bytes] = set()
        self.to_changed: set[bytes] = set()
        """Those acknowledged while the subscription got every message."""

    async def send(self, life: Life, body: bytes) -> None:
        """Send a message to each partition."""
        got = gets(life)
        acknowledged = await life.send("events", stored_with(subject="s", body=body))
        self.acknowledged |= acknowledged
        if got:
            self.to_changed |= acknowledged

    async def check(self, life: Life) -> None:
        """Compare with what the subscriptions hold."""
        kept = await life.messages("events", KEPT)
        assert self.acknowledged <= kept.keys(), "nothing acknowledged is lost"
        assert set(kept.values()) <= {1}, "nothing is there twice"
        if gets(life) is None:
            self.to_changed.clear()
            return
        changed = await life.messages("events", CHANGED)
        assert self.to_changed <= changed.keys() <= kept.keys() and set(changed.values()) <= {1}


async def faults_of(what: str) -> list[tuple[str, int]]:
    """Every disk call of the change, as operation and number."""
    life = await first_life(what)
    await Story().send(life, b"before")
    return await life.calls_of(change(life, what))


@pytest.mark.parametrize("restart", ["kill", "power cut"])
@pytest.mark.parametrize("what", WHAT)
async def test_a_change_of_subscriptions_that_the_disk_fails_loses_nothing_and_doubles_nothing(
    what: str, restart: str
) -> None:
    rng = random.Random(7)
    faults = await faults_of(what)
    assert {"rename", "sync_directory"} <= {operation for operation, _ in faults}
    for number, (operation, nth) in enumerate(faults):
        times, error = VARIETIES[(number + WHAT.index(what)) % len(VARIETIES)]
        print(f"{operation} number {nth} fails {times} times with {errno.errorcode[error]}")
        story, life = Story(), await first_life(what)
        assert gets(life) is BEFORE[what]
        await story.send(life, b"before")
        life.disk.fail(operation, error, nth=nth, times=times)
        is_made = await change(life, what)
        assert gets(life) is (AFTER if is_made else BEFORE)[what], "what is served is what was answered"
        await story.send(life, b"after the answer")
        if number % 2:
            life.disk.heal()
            await life.confirmed()
            assert is_made or await change(life, what), "a retry succeeds"
            is_made = True
            await story.send(life, b"after all")
        possible = {AFTER[what]} if is_made else {BEFORE[what]}
        if life.namespace.unconfirmed:
            possible = {BEFORE[what], AFTER[what]}
        left = await life.end(restart, rng)
        for further in (b"in the second life", b"in the third life"):
            life = Life(left)
            await life.namespace.load()
            assert gets(life) in possible
            possible = {gets(life)}
            await story.check(life)
            await story.send(life, further)
            await story.check(life)
            left = await life.end("power cut", rng)
