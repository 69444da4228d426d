"""ATOM documents and error bodies: XML in and out (HTTP contract 2.3 to 2.5, 2.9, 2.13).

Reading is liberal: it goes by XML namespace and never by prefix, takes elements in any order, and ignores
unknown ones. Writing produces the one shape that every official client parses: default namespaces, no
prefixes on a description's elements, and `self`, then `next`, as the only links. The content of a description
is up to `description_xml.py` and others; addresses and status codes are up to `admin.py`.
"""

from __future__ import annotations

import datetime
import functools
import itertools
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from xml.sax.saxutils import escape

from lxml import etree

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTERS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE = "application/xml; charset=utf-8"

_FEED_END = b"</feed>"
NEVER = "0001-01-01T00:00:00"
"""The time of something that has not happened. Go accepts only this spelling."""

TAGS_MAX = 10_000
"""Of a request body. A description has some dozens, but a rule may have hundreds of properties."""
ATTRIBUTES_MAX = 10_000
"""The same for attributes, and for signs in its texts that could begin the value of one."""

Element = etree._Element


class WrongXml(ValueError):
    """A request body that is not an ATOM entry with a description."""


@dataclass(slots=True, frozen=True)
class Description:
    """The description that an entry holds."""

    kind: str
    """`QueueDescription`, `TopicDescription`, `SubscriptionDescription` or `RuleDescription`."""
    values: Mapping[str, str]
    """The text of its plain elements, by local name. An empty element gives an empty text."""
    element: Element
    """The whole element, for reading nested elements."""


@dataclass(slots=True, frozen=True)
class Entry:
    """One entity to be written."""

    url: str
    """Absolute; written as `id` and as the `self` link."""
    title: str
    author: str
    published_ms: int
    updated_ms: int
    description: Element


@dataclass(slots=True, frozen=True)
class Child:
    """A direct child of a path: an entity, or a path that leads to entities."""

    url: str
    path: str
    updated_ms: int


def parse_entry(body: bytes) -> Description:
    """Read the description in an ATOM entry. Raises WrongXml.

    A document type declaration is refused, entities are not resolved, and nothing is fetched. The parser's
    own limits bound depth and size, TAGS_MAX and ATTRIBUTES_MAX the time it takes. The body is in UTF-8 or,
    with a byte-order mark, in UTF-16, whatever it says: in other encodings, what is counted looks different.
    """
    tags, attributes = body.count(b"<"), body.count(b"=")
    if tags > TAGS_MAX:
        raise WrongXml(f"The body has {tags} tags; the maximum is {TAGS_MAX}.")
    if attributes > ATTRIBUTES_MAX:
        raise WrongXml(f"The body has {attributes} equals signs; the maximum is {ATTRIBUTES_MAX}.")
    parser = etree.XMLParser(
        encoding="utf-16" if body[:2] in (BOM_UTF16_BE, BOM_UTF16_LE) else "utf-8",
        resolve_entities=False,
        no_network=True,
        load_dtd=False,
        huge_tree=False,
        remove_comments=True,
        remove_pis=True,
    )
    try:
        root = etree.fromstring(body, parser)
    except (etree.XMLSyntaxError, ValueError) as error:
        raise WrongXml(f"The body is not XML: {error}") from error
    if cast(Any, root.getroottree()).docinfo.doctype:
        raise WrongXml("A document type declaration is not allowed.")
    content = root if root.tag == f"{{{ATOM}}}content" else root.find(f"{{{ATOM}}}content")
    description = (
        next((child for child in content if isinstance(child.tag, str)), None)
        if content is not None
        else None
    )
    if description is None:
        raise WrongXml("The body is not an ATOM entry whose content is a description.")
    name = etree.QName(description)
    if name.namespace != SERVICE_BUS:
        raise WrongXml(f"The description '{name.localname}' is not in the namespace {SERVICE_BUS}.")
    return Description(name.localname, child_values(description), description)


def child_values(parent: Element) -> dict[str, str]:
    """The text of each child in the Service Bus namespace, by local name. The last of several children with
    the same name wins."""
    values = {}
    for child in parent:
        if isinstance(child.tag, str):
            name = etree.QName(child)
            if name.namespace == SERVICE_BUS:
                values[name.localname] = child.text or ""
    return values


def top(name: str, namespace: str, **prefixes: str) -> Element:
    """A new top element with its namespace as the default one, because clients fail on prefixed elements."""
    return etree.Element(
        f"{{{namespace}}}{name}", nsmap=cast("dict[str, str]", {None: namespace, **prefixes})
    )


def child(parent: Element, name: str, text: str, namespace: str = SERVICE_BUS) -> Element:
    """Append a child with a text. Characters that XML cannot hold are replaced."""
    element = etree.SubElement(parent, f"{{{namespace}}}{name}")
    element.text = printable(text)
    return element


def timestamp(time_ms: int | None) -> str:
    """A time in ATOM's format; `NEVER` for None."""
    if time_ms is None:
        return NEVER
    return f"{_second(time_ms // 1000)}.{time_ms % 1000:03d}Z"


def timestamp_bytes(time_ms: int) -> bytes:
    """A time in ATOM's format, for texts that are written as bytes."""
    time_s, milliseconds = divmod(time_ms, 1000)
    return _second_bytes(time_s) + _MILLISECONDS[milliseconds]


_MILLISECONDS = [b".%03dZ" % each for each in range(1000)]
"""Ends of times: to write one anew takes longer than all the rest of `timestamp_bytes`."""


@functools.lru_cache(1024)  # queues created or used together share their seconds
def _second(time_s: int) -> str:
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat().removesuffix("+00:00")


@functools.lru_cache(1024)
def _second_bytes(time_s: int) -> bytes:
    return _second(time_s).encode()


def write_entry(entry: Entry) -> bytes:
    """Write an entry as a separate document."""
    return etree.tostring(_entry_element(entry))


def write_feed(
    title: str, url: str, next_url: str | None, now_ms: int, entries: Iterable[bytes]
) -> Iterator[bytes]:
    """Write a feed of entries that `write_entry` has written, in pieces.

    `next_url` is absolute, and None on the last page. Its `link` is the second and last one, where Python
    looks for it.
    """
    here = escaped(url)
    following = "" if next_url is None else f'<link rel="next" href="{escaped(next_url)}"/>'
    begin = (
        f'<feed xmlns="{ATOM}"><title type="text">{escaped(title)}</title><id>{here}</id>'
        f'<updated>{timestamp(now_ms)}</updated><link rel="self" href="{here}"/>{following}'
    )
    return itertools.chain((begin.encode("ascii", "xmlcharrefreplace"),), entries, (_FEED_END,))


def write_discovery(
    url: str, next_url: str | None, now_ms: int, children: Iterable[Child]
) -> Iterator[bytes]:
    """Write the answer to GET of a path that is not an entity: its direct children, in pieces.

    Go recognises "not found" by this exact title. The other clients recognise it because no entry has a
    `content` (HTTP contract 2.8).
    """
    feed = top("feed", ATOM)
    child(feed, "title", "Publicly Listed Services", ATOM).set("type", "text")
    child(feed, "subtitle", "This is the list of publicly-listed services currently available.", ATOM).set(
        "type", "text"
    )
    child(feed, "id", url, ATOM)
    child(feed, "updated", timestamp(now_ms), ATOM)
    child(feed, "generator", "Service Bus 1.1", ATOM)
    _link(feed, "self", url)
    if next_url is not None:
        _link(feed, "next", next_url)
    # A single tree of a thousand entries would take 20 ms to write and to free.
    begin = etree.tostring(feed).removesuffix(_FEED_END)
    return itertools.chain(
        (begin,), (etree.tostring(_child_element(each)) for each in children), (_FEED_END,)
    )


def _child_element(each: Child) -> Element:
    entry = top("entry", ATOM)
    child(entry, "id", each.url, ATOM)
    child(entry, "title", each.path, ATOM).set("type", "text")
    child(entry, "updated", timestamp(each.updated_ms), ATOM)
    _link(entry, "alternate", each.url)
    return entry


def write_error(code: int, detail: str) -> bytes:
    """Write an error body, without a namespace. The code equals the HTTP status, because Java chooses its
    exception by it."""
    error = etree.Element("Error")
    etree.SubElement(error, "Code").text = str(code)
    etree.SubElement(error, "Detail").text = printable(detail)
    return etree.tostring(error)


def printable(text: str) -> str:
    """Replace what XML cannot hold, control characters and lone surrogates, by question marks."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c
        if c in "\t\n\r" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff")
        else "?"
        for c in text
    )


def escaped(text: str) -> str:
    """Text as it stands in an element or in an attribute with double quotes."""
    return escape(printable(text), {'"': "&quot;"})


def _entry_element(entry: Entry) -> Element:
    element = top("entry", ATOM)
    child(element, "id", entry.url, ATOM)
    child(element, "title", entry.title, ATOM).set("type", "text")
    child(element, "published", timestamp(entry.published_ms), ATOM)
    child(element, "updated", timestamp(entry.updated_ms), ATOM)
    child(etree.SubElement(element, f"{{{ATOM}}}author"), "name", entry.author, ATOM)
    _link(element, "self", entry.url)
    content = etree.SubElement(element, f"{{{ATOM}}}content", type="application/xml")
    content.append(entry.description)
    return element


def _link(parent: Element, relation: str, url: str) -> None:
    etree.SubElement(parent, f"{{{ATOM}}}link", rel=relation, href=url)
