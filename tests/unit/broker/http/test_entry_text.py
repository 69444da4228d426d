"""The entries of a list, written from templates."""

from __future__ import annotations

import urllib.parse
from pathlib import Path

import pytest
from lxml import etree

from broker.entities.descriptions import QueueSettings
from broker.entities.topics import TopicSettings
from broker.http.entry_text import ADDRESSES_MAX, TEMPLATES_MAX, WRITTEN_TOGETHER, EntryAddress, EntryTexts
from broker.namespace.entity import Entity
from broker.operations.message_states import SubqueueCounts
from tests.support.http_stack import http_stack


async def test_a_list_shows_each_queue_as_it_is_shown_alone_and_opens_no_log(tmp_path: Path) -> None:
    odd = QueueSettings(
        user_metadata="100 % mark-of-the-name & 1970-01-01T00:00:00.001Z",
        forward_dead_lettered_to="other queue",
    )
    async with http_stack(tmp_path) as stack:
        for name, settings in (
            ("plain", QueueSettings()),
            ("Odd/sub.name_1-x", QueueSettings()),
            ("marked", odd),
            ("short", QueueSettings(lock_duration_ms=5_000)),
        ):
            await stack.namespace.create_entity(name, settings, file_settings=settings)
        stack.partition.held = {
            "": SubqueueCounts(active=3, deferred=1, scheduled=2, bytes=70),
            "$deadletterqueue": SubqueueCounts(active=4, bytes=9),
        }
        stack.queue("plain").partition(0)
        stack.queue("short").accessed_at_ms = 1_700_000_000_123
        stack.queue("plain").partition(1)

        async def same() -> dict[str, bytes]:
            """The list's entries by name. Each must equal the entry at the queue's own address."""
            _, text, _ = await stack.ask("GET", "/$Resources/queues")
            entries = etree.fromstring(text.encode()).findall("{*}entry")
            shown: dict[str, bytes] = {}
            for entry in entries:
                name = entry.findtext("{*}title")
                assert name is not None
                _, alone, _ = await stack.ask("GET", f"/{urllib.parse.quote(name)}")
                shown[name] = etree.tostring(entry, method="c14n", exclusive=True)
                assert shown[name] == etree.tostring(
                    etree.fromstring(alone.encode()), method="c14n", exclusive=True
                ), name
            return shown

        before = await same()
        assert len(before) == 4 and b">10<" in before["plain"].replace(b"MessageCount", b""), (
            "3 + 1 + 2 + 4 messages"
        )
        await stack.namespace.update_entity("plain", QueueSettings(max_delivery_count=77))
        await stack.namespace.delete_entity("short")
        after = await same()
        assert b">77<" in after["plain"] and len(after) == 3
        assert not any(queue._partitions.keys() - {0, 1} for queue in stack.namespace.live_entities()), (
            "nobody was woken"
        )


async def test_equal_settings_share_a_template_and_nothing_grows_with_queues_addresses_or_settings(
    tmp_path: Path,
) -> None:
    async with http_stack(tmp_path) as stack:
        texts = EntryTexts("sbemulatorns")
        for number in range(20):
            await stack.namespace.create_entity(f"alike-{number}", QueueSettings(max_delivery_count=7))
        for number in range(ADDRESSES_MAX + 3):
            entries = texts.at(EntryAddress(f"host-{number}", f"http://host-{number}/", ""))
            written = {entries.entry(queue) for queue in stack.namespace.live_entities()}
            assert len(written) == 20 and all(b"http://host-%d/alike-" % number in text for text in written)
        assert len(texts._by_address) <= ADDRESSES_MAX
        assert len(entries._templates) == 1, "twenty queues with one description of their settings"

        queue = stack.queue("alike-0")
        for number in range(1, TEMPLATES_MAX + 3):
            settings = QueueSettings(
                max_delivery_count=number, user_metadata="mark-of-the-name" * (number % 2)
            )
            queue.description = queue.description.updated(settings, number)
            assert b"<MaxDeliveryCount>%d<" % number in entries.entry(queue)
        assert len(entries._templates) <= TEMPLATES_MAX


async def test_a_deleted_queue_has_no_entry(tmp_path: Path) -> None:
    async with http_stack(tmp_path) as stack:
        entries = EntryTexts("ns").at(EntryAddress("h", "http://h/", ""))
        await stack.namespace.create_entity("orders", QueueSettings())
        queue = stack.queue("orders")
        assert entries.entry(queue)
        await stack.namespace.delete_entity("orders")
        assert entries.entry(queue) == b""


async def test_a_queue_that_was_used_or_is_limited_is_shown_so_though_it_holds_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with http_stack(tmp_path) as stack:
        entries = EntryTexts("ns").at(EntryAddress("h", "http://h/", ""))
        for name in ("unused", "used", "limited"):
            await stack.namespace.create_entity(name, QueueSettings())
        unused, used, limited = (stack.queue(name) for name in ("unused", "used", "limited"))
        used.accessed_at_ms = 1_700_000_000_123
        monkeypatch.setattr(Entity, "available", property(lambda queue: queue is not limited))
        alone = [entries.entry(queue) for queue in (unused, used, limited)]
        assert all(queue.known_counts == {} for queue in (unused, used, limited)), "written from the template"
        assert b"".join(entries.entries([unused, used, limited])) == b"".join(alone)
        assert [b"2023-11-14T22:13:20" in text for text in alone] == [False, True, False]
        assert [b">Limited<" in text for text in alone] == [False, False, True]


async def test_entries_are_written_together_in_order_but_not_those_that_take_long(tmp_path: Path) -> None:
    async with http_stack(tmp_path) as stack:
        entries = EntryTexts("ns").at(EntryAddress("h", "http://h/", ""))
        names = [f"q{number:03}" for number in range(3 * WRITTEN_TOGETHER)]
        for name in names:
            await stack.namespace.create_entity(name, QueueSettings())
        queues = [stack.queue(name) for name in names]
        alone = [entries.entry(queue) for queue in queues]
        together = list(entries.entries(queues))
        assert b"".join(together) == b"".join(alone)
        assert [text.count(b"<entry") for text in together if text] == [WRITTEN_TOGETHER] * 3

        queues[5].partition(0)
        await stack.namespace.delete_entity(names[7])
        other = QueueSettings(max_delivery_count=7)
        queues[9].description = queues[9].description.updated(other, 1)
        await stack.namespace.create_entity("topic", TopicSettings())
        queues += [stack.queue("topic")] * 2
        again = EntryTexts("ns").at(EntryAddress("h", "http://h/", ""))
        together = list(again.entries(queues))
        counts = [text.count(b"<entry") for text in together if text]
        assert counts[:4] == [1, 5, 3, WRITTEN_TOGETHER], "a template, an open queue, another template"
        assert counts[-2:] == [7, 1], "a topic adds up what its subscriptions hold"
        assert b"".join(together) == b"".join(map(again.entry, queues))
