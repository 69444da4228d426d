"""Every disk call made by a change of the namespace fails once, a few times, or from then on; then the broker
restarts.

Whatever the answer to the change: no acknowledged message is lost, no refused change is present once it is
confirmed, and an unconfirmed change is present completely or not at all. (What a partition does when its own
log fails is tested elsewhere.)
"""

from __future__ import annotations

import errno
import itertools
import os
import random
from collections.abc import Iterable
from dataclasses import dataclass, field

import pytest

from broker.base.errors import Reason, Refused
from broker.entities.descriptions import EntityDescription, QueueSettings
from storage.catalogue import Catalogue
from tests.crash.lives import ROOT, VARIETIES, Life, is_acknowledged
from tests.support.recording_disk import RecordingDisk

RESTARTS = ("stop", "kill", "power cut", "power cut, some kept")
RETRIES = ("none", "at once", "once the disk is whole")
EVERY_TRIPLE = "PARTIBUS_CRASH_ROUNDS" in os.environ
"""`make crash` tries each failing call with every combination of variety, retry and restart; `make test` with
every pair of these.
"""
OLD, NEW = QueueSettings(max_delivery_count=1), QueueSettings(max_delivery_count=2)


@dataclass
class Expected:
    """What clients were told about the queue `orders`."""

    settings: QueueSettings | None
    """The settings as acknowledged; None if there is no queue."""
    possible: list[QueueSettings | None] = field(default_factory=list)
    """Other possible outcomes after a restart, since the last change was neither acknowledged nor
    confirmed.
    """
    acknowledged: set[bytes] = field(default_factory=set)

    def has(self, body: bytes) -> bool:
        """Whether all partitions have acknowledged the message."""
        return {b"%s to 0" % body, b"%s to 1" % body} <= self.acknowledged


async def change(life: Life, what: str) -> bool:
    """Make the change; whether it was acknowledged."""
    match what:
        case "create":
            return await is_acknowledged(life.namespace.create_entity("orders", NEW))
        case "update":
            return await is_acknowledged(life.namespace.update_entity("orders", NEW))
    return await is_acknowledged(life.namespace.delete_entity("orders"))


async def tell(life: Life, what: str, expected: Expected) -> bool:
    """Make the change and record the answer; the live queue must match what was acknowledged."""
    after = None if what == "delete" else NEW
    acknowledged = await change(life, what)
    if acknowledged:
        expected.settings = after
        if what == "delete":
            expected.acknowledged.clear()
    served = life.namespace.describe("orders")
    assert (served.settings if served else None) == expected.settings
    return acknowledged


async def post(life: Life, expected: Expected, body: bytes) -> None:
    """Send, and record the answer."""
    expected.acknowledged |= await life.send("orders", body)


async def check(life: Life, expected: Expected) -> None:
    """After a restart, check for what was acknowledged, or one of the possible outcomes, as a whole."""
    queue = life.namespace.describe("orders")
    settings = queue.settings if queue else None
    assert settings == expected.settings or settings in expected.possible
    expected.settings = settings
    if settings is None:
        assert expected.acknowledged == set() or None in expected.possible
        expected.acknowledged.clear()
    else:
        found = await life.messages("orders")
        assert {message for message, count in found.items() if count == 1} == set(found), (
            "nothing is there twice"
        )
        assert expected.acknowledged <= set(found), "nothing acknowledged is lost"
    assert set(await life.messages("bystander")) == {b"bystander to 0", b"bystander to 1"}
    generations = {each.generation for each in life.namespace.descriptions()}
    assert set(await life.store.entities()) <= generations, "what a deletion left is cleared"
    assert len(await Catalogue(ROOT / "catalogue", life.inner).load_all()) == len(generations), (
        "one entry for each name"
    )


async def first_life(what: str, lossy: bool) -> tuple[Life, Expected]:
    """An uninvolved queue, and a queue with a message to update or delete."""
    life = Life(RecordingDisk(), lossy=lossy)
    await life.namespace.load()
    await life.namespace.create_entity("bystander", OLD)
    assert await life.send("bystander", b"bystander") == {b"bystander to 0", b"bystander to 1"}
    expected = Expected(None)
    if what != "create":
        await life.namespace.create_entity("orders", OLD)
        expected.settings = OLD
        await post(life, expected, b"before")
        assert expected.has(b"before")
    return life, expected


async def faults_of(what: str) -> list[tuple[str, int]]:
    """Every disk call of the change, as operation and number."""
    life, _ = await first_life(what, False)
    return await life.calls_of(change(life, what))


def cases(faults: list[tuple[str, int]], retry: str, restart: str) -> Iterable[tuple[str, int, int, int]]:
    """Failing calls and the varieties to try: operation and number, how often, and which error."""
    for (place, fault), (number, variety) in itertools.product(enumerate(faults), enumerate(VARIETIES)):
        if EVERY_TRIPLE or (place + number + RESTARTS.index(restart)) % len(RETRIES) == RETRIES.index(retry):
            yield *fault, *variety


@pytest.mark.parametrize("restart", RESTARTS)
@pytest.mark.parametrize("retry", RETRIES)
@pytest.mark.parametrize("what", ["create", "update", "delete"])
async def test_a_change_that_the_disk_fails_loses_nothing_acknowledged_and_shows_nothing_refused(
    what: str, retry: str, restart: str
) -> None:
    rng = random.Random(7)
    unconfirmed = 0
    faults = await faults_of(what)
    assert {"rename", "sync_directory"} <= {operation for operation, _ in faults}
    for operation, nth, times, error in cases(faults, retry, restart):
        print(f"{operation} number {nth} fails {times} times with {errno.errorcode[error]}")
        life, expected = await first_life(what, lossy=restart.startswith("power cut"))
        life.disk.fail(operation, error, nth=nth, times=times)
        acknowledged = await tell(life, what, expected)
        await post(life, expected, b"after the first answer")
        if retry == "at once" and not acknowledged:
            acknowledged = await tell(life, what, expected)
            await post(life, expected, b"after the second answer")
        if retry != "none":
            life.disk.heal()
            if retry == "once the disk is whole" and not acknowledged:
                assert await tell(life, what, expected), "the retry succeeds"
            await life.confirmed()
            await post(life, expected, b"after all")
            assert expected.settings is None or expected.has(b"after all")
        if life.namespace.unconfirmed:
            unconfirmed += 1
            expected.possible = [None if what == "delete" else NEW]
            assert what != "delete" or not any(
                message.startswith(b"after") for message in expected.acknowledged
            )
        left = await life.end(restart, rng)

        for further in (b"in the second life", b"in the third life"):
            life = Life(left)
            await life.namespace.load()
            await check(life, expected)
            expected.possible = []
            if expected.settings is None:
                await life.namespace.create_entity("orders", OLD)
                expected.settings = OLD
            await post(life, expected, further)
            assert expected.has(further)
            left = await life.end("power cut", rng)
    assert unconfirmed > 0 or retry != "none", "some outcomes were not known"


async def test_over_many_changes_failures_and_restarts_each_queue_is_as_it_was_last_acknowledged() -> None:
    """A longer story than the tests above: many changes of a few queues over a disk that fails at random,
    with restarts.
    """
    rng = random.Random(11)
    inner, described = RecordingDisk(), dict[str, EntityDescription]()
    for _ in range(30):
        life = Life(inner)
        await life.namespace.load()
        assert {each.name: each for each in life.namespace.descriptions()} == described
        for _ in range(10):
            name = rng.choice(["a", "b", "c"])
            for operation in rng.sample(["sync_directory", "rename", "sync", "create", "write", "remove"], 2):
                life.disk.fail(
                    operation, nth=rng.randrange(1, 4), times=rng.choice([1, 2, 5]), path_part="catalogue"
                )
            settings = QueueSettings(max_delivery_count=rng.randrange(1, 1_000))
            try:
                if name not in described:
                    described[name] = await life.namespace.create_entity(name, settings)
                elif rng.random() < 0.6:
                    described[name] = await life.namespace.update_entity(name, settings)
                else:
                    await life.namespace.delete_entity(name)
                    del described[name]
            except Refused as why:
                assert why.reason is Reason.PARTITION_UNAVAILABLE
        life.disk.heal()
        await life.confirmed()
        assert {each.name: each for each in life.namespace.descriptions()} == described
        inner = await life.end(rng.choice(["stop", "kill", "power cut"]), rng)
