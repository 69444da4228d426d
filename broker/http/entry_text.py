"""The entries of a list of queues, written from templates: a thousand of them as XML trees would take half a second.

Most queues of a namespace have the same settings. So one entry with these settings is written as `atom.py` and `queue_xml.py` write any,
with a mark in place of what differs from queue to queue: name, address, times, counts. The text around the marks serves for all the
others. What stays the same until a queue is updated is kept for each (some 500 bytes).
"""

from __future__ import annotations

import re
import urllib.parse
from collections.abc import Callable
from operator import itemgetter
from typing import NamedTuple
from xml.sax.saxutils import escape

from broker.entities import QueueDescription, QueueSettings
from broker.http.atom import NEVER, Entry, printable, timestamp, write_entry
from broker.http.queue_xml import write_queue
from broker.namespace import EntityRuntime

TEMPLATES_MAX = 256
"""Each takes some 3 KiB."""
KEPT_MAX = 20_000
"""Queues for which the unchanging values are kept."""

_TEXT_MARKS = ("mark-of-the-address", "mark-of-the-name", "mark-of-availability")
_TIME_MARKS = (1, 2, 3)
"""Published, updated, accessed: moments long before there was a broker."""
_NUMBER_MARKS = tuple(range(-7_654_321_000, -7_654_321_000 + 7))
"""Size, messages, and the five counts."""
_PLAIN = re.compile(r"[A-Za-z0-9._/~$-]+")
_NEVER = NEVER.encode()


class _Template(NamedTuple):
    """Formatting bytes takes a third of the time that formatting text and encoding it does."""

    text: bytes
    """With %b or %d in place of each mark."""
    in_order: Callable[[tuple[bytes | int, ...]], tuple[bytes | int, ...]]
    """Puts the values, which come as in `_marks`, in the order of the text."""


class _Kept(NamedTuple):
    """What stays the same until the queue is updated, or asked for under another address."""

    description: QueueDescription
    url_start: str
    url_end: str
    template: _Template | None
    texts: tuple[bytes, bytes, bytes, bytes]
    """Address, name, published, updated."""


def _marks() -> tuple[str, ...]:
    """In the order in which `EntryTexts.entry` gives the values."""
    address, name, availability = _TEXT_MARKS
    published, updated, accessed = map(timestamp, _TIME_MARKS)
    return (address, name, published, updated, accessed, availability, *map(str, _NUMBER_MARKS))


_TIMES_SEEN = {0: 2, 2: 2, 3: 2}
"""Marks that stand in an entry more than once: the address, and the two times of the description."""


class EntryTexts:
    """Writes entries like those that `write_entry` gives. One per broker."""

    def __init__(self, author: str) -> None:
        self._author = author
        self._templates: dict[tuple[QueueSettings, str], _Template | None] = {}
        """None where a mark stands in the settings themselves."""
        self._kept: dict[str, _Kept] = {}

    def entry(self, queue: QueueDescription, runtime: EntityRuntime, host: str, url_start: str, url_end: str) -> bytes:
        """A queue's entry. `url_start` and `url_end` stand around its quoted name in its address."""
        kept = self._kept.get(queue.generation)
        if kept is None or kept.description is not queue or kept.url_start != url_start or kept.url_end != url_end:
            kept = self._keep(queue, host, url_start, url_end)
        if kept.template is None:
            url = url_start + urllib.parse.quote(queue.name, safe="/$~") + url_end
            return self._write(queue, runtime, host, url)
        accessed = _NEVER if runtime.accessed_at_ms is None else timestamp(runtime.accessed_at_ms).encode()
        values = (
            *kept.texts, accessed, runtime.availability.encode(), runtime.size_bytes, runtime.message_count,
            runtime.active, runtime.dead_letter, runtime.scheduled, runtime.transfer, runtime.transfer_dead_letter,
        )  # fmt: skip
        return kept.template.text % kept.template.in_order(values)

    def _keep(self, queue: QueueDescription, host: str, url_start: str, url_end: str) -> _Kept:
        key = (queue.settings, host)
        if key in self._templates:
            template = self._templates[key]
        else:
            if len(self._templates) >= TEMPLATES_MAX:
                self._templates.clear()
            template = self._templates[key] = self._make(queue.settings, host)
        name = queue.name
        url = url_start + (name if _PLAIN.fullmatch(name) else urllib.parse.quote(name, safe="/$~")) + url_end
        texts = (
            _ascii(escape(url, {'"': "&quot;"})),
            _ascii(escape(printable(name))),
            _ascii(timestamp(queue.created_at_ms)),
            _ascii(timestamp(queue.updated_at_ms)),
        )
        if len(self._kept) >= KEPT_MAX:
            self._kept.clear()
        kept = self._kept[queue.generation] = _Kept(queue, url_start, url_end, template, texts)
        return kept

    def _make(self, settings: QueueSettings, host: str) -> _Template | None:
        address, name, availability = _TEXT_MARKS
        published, updated, accessed = _TIME_MARKS
        size, messages, active, dead, scheduled, transfer, transfer_dead = _NUMBER_MARKS
        queue = QueueDescription(name, "", 1, settings, published, updated, None)
        runtime = EntityRuntime(active, dead, scheduled, transfer, transfer_dead, messages, size, availability, accessed)
        text = self._write(queue, runtime, host, address).replace(b"%", b"%%")
        marks = list(map(str.encode, _marks()))
        if any(text.count(mark) != _TIMES_SEEN.get(place, 1) for place, mark in enumerate(marks)):
            return None
        either = re.compile(b"|".join(map(re.escape, marks)))
        numbers = frozenset(marks[-len(_NUMBER_MARKS) :])
        order = [marks.index(found) for found in either.findall(text)]
        return _Template(either.sub(lambda found: b"%d" if found[0] in numbers else b"%b", text), itemgetter(*order))

    def _write(self, queue: QueueDescription, runtime: EntityRuntime, host: str, url: str) -> bytes:
        description = write_queue(queue, runtime, host)
        return write_entry(Entry(url, queue.name, self._author, queue.created_at_ms, queue.updated_at_ms, description))


def _ascii(text: str) -> bytes:
    return text.encode("ascii", "xmlcharrefreplace")
