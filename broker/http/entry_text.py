"""Writes the entries of a list of queues from templates: a thousand of them as XML trees would take half a
second.

Most queues of a namespace have the same settings. One entry with these settings is written by `atom.py` and
`queue_xml.py`, with marks in place of what differs from queue to queue: name, times and counts. The text
around the marks then serves for all other queues. Values that stay the same until a queue is updated are kept
for each queue (some 400 bytes).
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple
from xml.sax.saxutils import escape

from broker.entities.descriptions import QueueDescription, QueueSettings
from broker.http.atom import NEVER, Entry, printable, timestamp, write_entry
from broker.http.queue_xml import write_queue
from broker.namespace.namespace import EntityRuntime

TEMPLATES_MAX = 256
"""Each template takes about 3 KiB."""
KEPT_MAX = 20_000
"""The number of queues whose unchanging values are kept."""

_TEXT_MARKS = ("mark-of-the-quoted-name", "mark-of-the-name", "mark-of-availability")
_TIME_MARKS = (1, 2, 3)
"""Published, updated, accessed: times long before any broker ran."""
_NUMBER_MARKS = tuple(range(-7_654_321_000, -7_654_321_000 + 7))
"""Size, messages, and the five counts."""
_PLAIN = re.compile(r"[A-Za-z0-9._/~$-]+")
_NEVER = NEVER.encode()


class _Template(NamedTuple):
    """Text as bytes: formatting bytes takes a third of the time of formatting text and then encoding it."""

    text: bytes
    """With %b or %d in place of each mark."""
    in_order: Callable[[tuple[bytes | int, ...]], tuple[bytes | int, ...]]
    """Reorders the values from the order of `_marks` to the order of the text."""


class Address(NamedTuple):
    """How a client addresses the broker: the host, and the parts of an entity's URL around the name."""

    host: str
    start: str
    """The URL before the entity's quoted name."""
    end: str
    """The URL after the name."""


class _Kept(NamedTuple):
    """The values that stay the same until the queue is updated."""

    description: QueueDescription
    settings: int
    """The number given to its settings. Using it as a key takes a tenth of the time of hashing them."""
    texts: tuple[bytes, bytes, bytes, bytes]
    """Quoted name, name, published, updated."""


def _marks() -> tuple[str, ...]:
    """All marks, in the order in which `EntryTexts.entry` gives the values."""
    quoted, name, availability = _TEXT_MARKS
    published, updated, accessed = map(timestamp, _TIME_MARKS)
    return (quoted, name, published, updated, accessed, availability, *map(str, _NUMBER_MARKS))


_TIMES_SEEN = {0: 2, 2: 2, 3: 2}
"""Marks that occur more than once in an entry, by their place in `_marks`: the quoted name, and the two times
of the description."""


class EntryTexts:
    """Writes the same entries as `write_entry`, faster. One per broker."""

    def __init__(self, author: str) -> None:
        self._author = author
        self._numbers: dict[QueueSettings, int] = {}
        self._next_number = 0
        self._templates: dict[tuple[Address, int], _Template | None] = {}
        """By address and number of the settings; None where the address or the settings themselves contain a
        mark."""
        self._kept: dict[str, _Kept] = {}

    def entry(self, queue: QueueDescription, runtime: EntityRuntime, address: Address) -> bytes:
        """Write a queue's entry."""
        kept = self._kept.get(queue.generation)
        if kept is None or kept.description is not queue:
            kept = self._keep(queue)
        key = (address, kept.settings)
        template = self._templates.get(key)
        if template is None:
            template = self._template(key, queue.settings)
            if template is None:
                return self._write(
                    queue, runtime, address.host, address.start + _quoted(queue.name) + address.end
                )
        accessed = _NEVER if runtime.accessed_at_ms is None else timestamp(runtime.accessed_at_ms).encode()
        values = (
            *kept.texts, accessed, runtime.availability.encode(), runtime.size_bytes, runtime.message_count,
            runtime.active, runtime.dead_letter, runtime.scheduled, runtime.transfer,
            runtime.transfer_dead_letter,
        )  # fmt: skip
        return template.text % template.in_order(values)

    def _keep(self, queue: QueueDescription) -> _Kept:
        number = self._numbers.get(queue.settings)
        if number is None:
            if len(self._numbers) >= TEMPLATES_MAX:
                self._numbers.clear()
            number = self._numbers[queue.settings] = self._next_number
            self._next_number += 1
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        name, created_ms, updated_ms = queue.name, queue.created_at_ms, queue.updated_at_ms
        created = timestamp(created_ms).encode()
        updated = timestamp(updated_ms).encode() if updated_ms != created_ms else created
        if _PLAIN.fullmatch(name):
            quoted = shown = name.encode()
        else:
            quoted, shown = _ascii(escape(_quoted(name), {'"': "&quot;"})), _ascii(escape(printable(name)))
        kept = self._kept[queue.generation] = _Kept(queue, number, (quoted, shown, created, updated))
        return kept

    def _template(self, key: tuple[Address, int], settings: QueueSettings) -> _Template | None:
        if key not in self._templates:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            self._templates[key] = self._make(settings, key[0])
        return self._templates[key]

    def _make(self, settings: QueueSettings, address: Address) -> _Template | None:
        quoted, name, availability = _TEXT_MARKS
        published, updated, accessed = _TIME_MARKS
        size, messages, active, dead, scheduled, transfer, transfer_dead = _NUMBER_MARKS
        queue = QueueDescription(name, "", 1, settings, published, updated, None)
        runtime = EntityRuntime(
            active, dead, scheduled, transfer, transfer_dead, messages, size, availability, accessed
        )
        text = self._write(queue, runtime, address.host, address.start + quoted + address.end).replace(
            b"%", b"%%"
        )
        marks = list(map(str.encode, _marks()))
        if any(text.count(mark) != _TIMES_SEEN.get(place, 1) for place, mark in enumerate(marks)):
            return None
        either = re.compile(b"|".join(map(re.escape, marks)))
        numbers = frozenset(marks[-len(_NUMBER_MARKS) :])
        order = [marks.index(found) for found in either.findall(text)]
        return _Template(
            either.sub(lambda found: b"%d" if found[0] in numbers else b"%b", text), itemgetter(*order)
        )

    def _write(self, queue: QueueDescription, runtime: EntityRuntime, host: str, url: str) -> bytes:
        description = write_queue(queue, runtime, host)
        return write_entry(
            Entry(url, queue.name, self._author, queue.created_at_ms, queue.updated_at_ms, description)
        )


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="/$~")


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "xmlcharrefreplace")
