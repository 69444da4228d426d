"""ATOM frames and error bodies: XML in and out (HTTP contract 2.3 to 2.5, 2.9, 2.13).

Reading is liberal: by XML namespace and never by prefix, elements in any order, unknown ones passed over.
Writing is the one shape that every official client parses: default namespaces, no prefixes on a description's
elements, `self` and then `next` as the only links. What stands inside a description is `queue_xml.py`'s
business; addresses and status codes are `admin.py`'s.
"""

from __future__ import annotations

import datetime
import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from lxml import etree

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTERS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE = "application/xml; charset=utf-8"

NEVER = "0001-01-01T00:00:00"
"""A time that has not been: Go takes this spelling only."""

Element = etree._Element


class WrongXml(ValueError):
    """A request body that is not an ATOM entry with a description."""


@dataclass(slots=True, frozen=True)
class Description:
    """The description that an entry holds."""

    kind: str
    """`QueueDescription`, `TopicDescription`, `SubscriptionDescription` or `RuleDescription`."""
    values: Mapping[str, str]
    """Its plain elements, by local name. An element that is there and empty is an empty text."""
    element: Element
    """The whole of it, for what is nested."""


@dataclass(slots=True, frozen=True)
class Entry:
    """One entity on its way out."""

    url: str
    """Absolute: `id` and `self`."""
    title: str
    author: str
    published_ms: int
    updated_ms: int
    description: Element


@dataclass(slots=True, frozen=True)
class Child:
    """What lies directly below a path: an entity, or a path on the way to some."""

    url: str
    path: str
    updated_ms: int


def parse_entry(body: bytes) -> Description:
    """The description in an ATOM entry. Raises WrongXml.

    No entities, no DTD, nothing fetched, and depth and size bounded by the parser's own limits.
    """
    parser = etree.XMLParser(
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
    """The text of each child in the Service Bus namespace, by local name; of one that stands twice, the
    last."""
    values = {}
    for child in parent:
        if isinstance(child.tag, str):
            name = etree.QName(child)
            if name.namespace == SERVICE_BUS:
                values[name.localname] = child.text or ""
    return values


def top(name: str, namespace: str, **prefixes: str) -> Element:
    """A new top element, whose namespace is the default one: clients fail on prefixed elements."""
    return etree.Element(
        f"{{{namespace}}}{name}", nsmap=cast("dict[str, str]", {None: namespace, **prefixes})
    )


def child(parent: Element, name: str, text: str, namespace: str = SERVICE_BUS) -> Element:
    """A new last child. Characters that XML cannot hold are replaced."""
    element = etree.SubElement(parent, f"{{{namespace}}}{name}")
    element.text = printable(text)
    return element


def timestamp(time_ms: int | None) -> str:
    """A moment as ATOM spells it; `NEVER` for None."""
    if time_ms is None:
        return NEVER
    return f"{_second(time_ms // 1000)}.{time_ms % 1000:03d}Z"


@functools.lru_cache(1024)  # queues that are created or used together share their seconds
def _second(time_s: int) -> str:
    return datetime.datetime.fromtimestamp(time_s, datetime.UTC).isoformat().removesuffix("+00:00")


def write_entry(entry: Entry) -> bytes:
    """An entry as a document of its own."""
    return etree.tostring(_entry_element(entry))


def write_feed(
    title: str, url: str, next_url: str | None, now_ms: int, entries: Iterable[bytes]
) -> Iterator[bytes]:
    """A list of entries as `write_entry` gives them, in pieces.

    `next_url`, absolute, only where more follow: the second and last `link`, where Python looks for it.
    """
    feed = top("feed", ATOM)
    child(feed, "title", title, ATOM).set("type", "text")
    child(feed, "id", url, ATOM)
    child(feed, "updated", timestamp(now_ms), ATOM)
    _link(feed, "self", url)
    if next_url is not None:
        _link(feed, "next", next_url)
    return _pieces(feed, entries)


def write_discovery(
    url: str, next_url: str | None, now_ms: int, children: Iterable[Child]
) -> Iterator[bytes]:
    """The answer to GET of a path where no entity is: what lies directly below it, in pieces. Go knows "not
    found" by this very title.

    Without a `content`, no entry is an entity to anybody: the other clients know "not found" by that (HTTP
    contract 2.8).
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
    return _pieces(feed, (etree.tostring(_child_element(each)) for each in children))


def _pieces(feed: Element, entries: Iterable[bytes]) -> Iterator[bytes]:
    """A feed with entries, each a piece of its own: one tree of a thousand takes 20 ms to write and to
    free."""
    end = b"</feed>"
    yield etree.tostring(feed).removesuffix(end)
    yield from entries
    yield end


def _child_element(each: Child) -> Element:
    entry = top("entry", ATOM)
    child(entry, "id", each.url, ATOM)
    child(entry, "title", each.path, ATOM).set("type", "text")
    child(entry, "updated", timestamp(each.updated_ms), ATOM)
    _link(entry, "alternate", each.url)
    return entry


def write_error(code: int, detail: str) -> bytes:
    """An error body: no namespace, and the code equal to the HTTP status, for Java maps exceptions from
    it."""
    error = etree.Element("Error")
    etree.SubElement(error, "Code").text = str(code)
    etree.SubElement(error, "Detail").text = printable(detail)
    return etree.tostring(error)


def printable(text: str) -> str:
    """The text without what XML cannot hold: control characters and lone surrogates become question marks."""
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        c
        if c in "\t\n\r" or (c >= " " and not "\ud800" <= c <= "\udfff" and c not in "\ufffe\uffff")
        else "?"
        for c in text
    )


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
