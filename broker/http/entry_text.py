"""Writes the entries of a list of queues from templates: a thousand of them as XML trees would take half a
second.

Most queues of a namespace have the same settings. One entry with these settings is written by `atom.py` and
`kinds.py`, with marks in place of what differs from queue to queue: name, times and counts. The text
around the marks then serves for all other queues. Only templates are kept, and nothing about single queues.
"""

from __future__ import annotations

import re
import string
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from operator import itemgetter
from typing import NamedTuple

from broker.entities.descriptions import EntityDescription, EntitySettings
from broker.http.atom import NEVER, Entry, escaped, timestamp, timestamp_bytes, write_entry
from broker.http.kinds import xml_of
from broker.namespace.entity import Entity
from broker.namespace.runtime import EntityRuntime

TEMPLATES_MAX = 256
"""For each address. A template takes about 5 KiB."""
ADDRESSES_MAX = 8
WRITTEN_TOGETHER = 16
"""Entries that a step writes: a tenth of a millisecond."""

_TEXT_MARKS = ("mark-of-the-quoted-name", "mark-of-the-name", "mark-of-availability")
_TIME_MARKS = (1, 2, 3)
"""Published, updated, accessed: times long before any broker ran."""
_NUMBER_MARKS = tuple(range(-7_654_321_000, -7_654_321_000 + 7))
"""Size, messages, and the five counts."""
_ARE_PLAIN = frozenset(string.ascii_letters + string.digits + "._/~$-").issuperset
"""Whether all characters of a name stand for themselves, in URLs and in XML."""
_NEVER = NEVER.encode()

_Values = tuple[bytes | int, ...]


class _Template(NamedTuple):
    """Text as bytes: formatting bytes takes a third of the time of formatting text and then encoding it."""

    settings: EntitySettings
    """Kept, so that no other settings get the same `id` while the template is found by it."""
    text: bytes
    """With %b or %d in place of each mark."""
    in_order: Callable[[_Values], _Values]
    """Reorders the values from the order of `_MARKS` to the order of the text."""
    unused_text: bytes
    """The same for a queue that nobody has used and that holds nothing: %b in place of its name and times."""
    unused_in_order: Callable[[_Values], _Values]


class EntryAddress(NamedTuple):
    """How a client addresses the broker: the host, and the parts of an entity's URL around the name."""

    host: str
    start: str
    """The URL before the entity's quoted name."""
    end: str
    """The URL after the name."""


def _marks() -> list[bytes]:
    """All marks, in the order in which `_fill` gives their values."""
    quoted, name, availability = _TEXT_MARKS
    published, updated, accessed = map(timestamp, _TIME_MARKS)
    marks = (quoted, name, published, updated, accessed, availability, *map(str, _NUMBER_MARKS))
    return list(map(str.encode, marks))


_MARKS = _marks()
_UNUSED = (_NEVER, b"Available", *(b"0" for _ in _NUMBER_MARKS))
"""The values of an unused queue, in the order of the marks from the fifth on."""
_TIMES_SEEN = {0: 2, 2: 2, 3: 2}
"""Marks that occur more than once in an entry, by their place in `_MARKS`: the quoted name, and the two times
of the description."""


class EntryTexts:
    """Writes the same entries as `write_entry`, faster. One per namespace."""

    def __init__(self, author: str) -> None:
        """`author`: the namespace's name."""
        self._author = author
        self._by_address: dict[EntryAddress, Entries] = {}

    def at(self, address: EntryAddress) -> Entries:
        """The writer for clients that use this address."""
        entries = self._by_address.get(address)
        if entries is None:
            if len(self._by_address) >= ADDRESSES_MAX:
                self._by_address.clear()
            entries = self._by_address[address] = Entries(self._author, address)
        return entries


class Entries:
    """Writes entries for clients that address the broker in one way."""

    def __init__(self, author: str, address: EntryAddress) -> None:
        self._author, self._address = author, address
        self._templates: dict[int, _Template | None] = {}
        """By the `id` of the settings, which most queues share (`descriptions.shared`): a hash of the
        settings takes ten times as long. None where the address or the settings contain a mark."""
        self._unmatched: list[EntitySettings] = []
        """The settings without a template, kept for the same reason as `_Template.settings`."""

    def entries(self, entities: Iterable[Entity]) -> Iterator[bytes]:
        """Write the entries of these entities in steps, those that take little time together."""
        written: list[bytes] = []
        templates = self._templates
        for entity in entities:
            counts = entity.known_counts
            template = None if counts is None else templates.get(id(entity.description.settings))
            if counts is None or template is None:
                written.append(self.entry(entity))
            else:
                if entity.gone is None:
                    is_unused = not counts and entity.accessed_at_ms is None and entity.available
                    runtime = None if is_unused else entity.runtime_with(counts)
                    written.append(_fill(template, entity, runtime))
                if len(written) < WRITTEN_TOGETHER:
                    continue
            yield b"".join(written)
            written.clear()
        yield b"".join(written)

    def entry(self, entity: Entity) -> bytes:
        """Write an entity's entry; nothing if it was deleted or is out of service."""
        if entity.gone is not None:
            return b""
        description = entity.description
        try:
            template = self._templates[id(description.settings)]
        except KeyError:
            template = self._know(description)
        if template is None:
            return self._write(description, entity.runtime())
        return _fill(template, entity, entity.runtime())

    def _know(self, description: EntityDescription) -> _Template | None:
        if len(self._templates) >= TEMPLATES_MAX:
            self._templates.clear()
            self._unmatched.clear()
        template = self._templates[id(description.settings)] = self._make(description)
        if template is None:
            self._unmatched.append(description.settings)
        return template

    def _make(self, description: EntityDescription) -> _Template | None:
        quoted, name, availability = _TEXT_MARKS
        published, updated, accessed = _TIME_MARKS
        size, messages, active, dead, scheduled, transfer, transfer_dead = _NUMBER_MARKS
        marked = replace(description, name=name, created_at_ms=published, updated_at_ms=updated)
        runtime = EntityRuntime(
            active, dead, scheduled, transfer, transfer_dead, messages, size, availability, accessed
        )
        address = self._address
        text = self._write(marked, runtime, address.start + quoted + address.end).replace(b"%", b"%%")
        if any(text.count(mark) != _TIMES_SEEN.get(place, 1) for place, mark in enumerate(_MARKS)):
            return None
        values = dict.fromkeys(_MARKS, b"%b") | dict.fromkeys(_MARKS[-len(_NUMBER_MARKS) :], b"%d")
        unused = dict.fromkeys(_MARKS[:4], b"%b") | dict(zip(_MARKS[4:], _UNUSED, strict=True))
        order = [_MARKS.index(found) for found in _EITHER.findall(text)]
        return _Template(
            description.settings,
            _EITHER.sub(lambda found: values[found[0]], text),
            itemgetter(*order),
            _EITHER.sub(lambda found: unused[found[0]], text),
            itemgetter(*(place for place in order if place < 4)),
        )

    def _write(self, description: EntityDescription, runtime: EntityRuntime, url: str | None = None) -> bytes:
        """Write an entry without a template."""
        address = self._address
        name = description.name
        if url is None:
            url = address.start + _quoted(name) + address.end
        content = xml_of(description).write(description, runtime, address.host)
        created_ms, updated_ms = description.created_at_ms, description.updated_at_ms
        return write_entry(Entry(url, name, self._author, created_ms, updated_ms, content))


def _fill(template: _Template, entity: Entity, runtime: EntityRuntime | None) -> bytes:
    """Write an entity's entry from the template of its settings. `runtime`: what it holds now; None if nobody
    has used it since the broker started, it holds nothing and is available."""
    description = entity.description
    name, created_ms, updated_ms = description.name, description.created_at_ms, description.updated_at_ms
    created = timestamp_bytes(created_ms)
    updated = created if updated_ms == created_ms else timestamp_bytes(updated_ms)
    if _ARE_PLAIN(name):
        quoted = shown = name.encode()
    else:
        quoted, shown = _ascii(_quoted(name)), _ascii(name)
    if runtime is None:
        return template.unused_text % template.unused_in_order((quoted, shown, created, updated))
    accessed = _NEVER if runtime.accessed_at_ms is None else timestamp_bytes(runtime.accessed_at_ms)
    values = (
        quoted, shown, created, updated, accessed, runtime.availability.encode(), runtime.size_bytes,
        runtime.message_count, runtime.active, runtime.dead_letter, runtime.scheduled, runtime.transfer,
        runtime.transfer_dead_letter,
    )  # fmt: skip
    return template.text % template.in_order(values)


_EITHER = re.compile(b"|".join(map(re.escape, _MARKS)))


def _quoted(name: str) -> str:
    return urllib.parse.quote(name, safe="/$~")


def _ascii(text: str) -> bytes:
    return escaped(text).encode("ascii", "xmlcharrefreplace")
