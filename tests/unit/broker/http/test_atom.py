"""ATOM entries, feeds, discovery and errors: the forms that are read, and the one form that is written."""

from __future__ import annotations

import pytest
from lxml import etree

from broker.entities.descriptions import QueueDescription
from broker.http.atom import (
    ATOM,
    ATTRIBUTES_MAX,
    SERVICE_BUS,
    TAGS_MAX,
    Child,
    Entry,
    WrongXml,
    parse_entry,
    printable,
    timestamp,
    write_discovery,
    write_entry,
    write_error,
    write_feed,
)
from broker.http.queue_xml import write_queue
from broker.namespace.runtime import EntityRuntime

NOW_MS = 1_767_607_200_123  # 2026-01-05T10:00:00.123Z


def body(description: str) -> bytes:
    return f'<entry xmlns="{ATOM}"><content type="application/xml">{description}</content></entry>'.encode()


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"<entry",
        b"{}",
        f'<entry xmlns="{ATOM}"/>'.encode(),
        f'<entry xmlns="{ATOM}"><content/></entry>'.encode(),
        body('<QueueDescription xmlns="urn:other"/>'),
        b'<!DOCTYPE e [<!ENTITY a "b">]>'
        + body(
            f'<QueueDescription xmlns="{SERVICE_BUS}"><UserMetadata>&a;</UserMetadata></QueueDescription>'
        ),
        b"<a>" * 100_000,
        b"\xff\xfe\x00",
    ],
)
def test_a_body_that_is_no_description_is_refused(broken: bytes) -> None:
    with pytest.raises(WrongXml):
        parse_entry(broken)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_a_body_has_a_limited_number_of_tags(encoding: str) -> None:
    """Each takes a microsecond on the event loop. A description has some dozens of them."""

    def with_unknown(count: int) -> bytes:
        unknown = f'<QueueDescription xmlns="{SERVICE_BUS}">{"<a/>" * count}</QueueDescription>'
        return body(unknown).decode().encode(encoding)

    outside = with_unknown(0).count(b"<")
    assert parse_entry(with_unknown(TAGS_MAX - outside)).kind == "QueueDescription"
    with pytest.raises(WrongXml, match="The body has 10001 tags; the maximum is 10000"):
        parse_entry(with_unknown(TAGS_MAX - outside + 1))


def test_a_body_has_a_limited_number_of_attributes() -> None:
    def with_unknown(count: int) -> bytes:
        unknown = " ".join(f"a{number}=''" for number in range(count))
        return body(f'<QueueDescription xmlns="{SERVICE_BUS}"><a {unknown}/></QueueDescription>')

    outside = with_unknown(0).count(b"=")
    assert parse_entry(with_unknown(ATTRIBUTES_MAX - outside)).kind == "QueueDescription"
    with pytest.raises(WrongXml, match="The body has 10001 equals signs; the maximum is 10000"):
        parse_entry(with_unknown(ATTRIBUTES_MAX - outside + 1))


@pytest.mark.parametrize("encoding", ["utf-7", "utf-32", "cp037"])
def test_tags_do_not_hide_in_another_encoding(encoding: str) -> None:
    text = body(f'<QueueDescription xmlns="{SERVICE_BUS}"><a/></QueueDescription>').decode()
    encoded = f'<?xml version="1.0" encoding="{encoding}"?>{text}'.encode(encoding)
    if encoding == "utf-7":  # one way to write it that all decoders read
        begin, _, rest = encoded.decode().partition("?>")
        encoded = (begin + "?>" + rest.replace("<", "+ADw-").replace(">", "+AD4-")).encode()
    with pytest.raises(WrongXml, match="The body is not XML"):
        parse_entry(encoded)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_a_body_may_be_in_utf_8_or_utf_16(encoding: str) -> None:
    said = encoding.removesuffix("-sig")
    text = f"<QueueDescription xmlns='{SERVICE_BUS}'><UserMetadata>Größe</UserMetadata></QueueDescription>"
    encoded = f'<?xml version="1.0" encoding="{said}"?>{body(text).decode()}'.encode(encoding)
    assert parse_entry(encoded).values["UserMetadata"] == "Größe"


def test_a_feed_has_self_and_then_next_and_no_third_link() -> None:
    description = write_queue(
        QueueDescription("orders", "0" * 32, 1),
        EntityRuntime(0, 0, 0, 0, 0, 0, 0, "Available", None),
        "localhost:5300",
    )
    entry = Entry("http://h/orders", "orders", "sbemulatorns", NOW_MS, NOW_MS, description)
    feed = etree.fromstring(
        b"".join(
            write_feed(
                "Queues",
                "http://h/$Resources/queues",
                "http://h/$Resources/queues?%24skip=1",
                NOW_MS,
                [write_entry(entry)],
            )
        )
    )
    links = feed.findall(f"{{{ATOM}}}link")
    assert [(link.get("rel"), link.get("href")) for link in links] == [
        ("self", "http://h/$Resources/queues"),
        ("next", "http://h/$Resources/queues?%24skip=1"),
    ]
    assert len(feed.findall(f"{{{ATOM}}}entry")) == 1
    assert (
        len(
            etree.fromstring(b"".join(write_feed("Queues", "http://h/", None, NOW_MS, []))).findall(
                f"{{{ATOM}}}link"
            )
        )
        == 1
    )


def test_discovery_has_the_title_by_which_go_knows_not_found_and_entries_without_content() -> None:
    feed = etree.fromstring(b"".join(write_discovery("http://h/q", None, NOW_MS, [])))
    assert feed.findtext(f"{{{ATOM}}}title") == "Publicly Listed Services"
    assert feed.find(f"{{{ATOM}}}entry") is None
    feed = etree.fromstring(
        b"".join(
            write_discovery("http://h/q", "http://h/next", NOW_MS, [Child("http://h/q/a", "q/a", NOW_MS)])
        )
    )
    assert feed.findtext(f"{{{ATOM}}}title") == "Publicly Listed Services"
    assert [(link.get("rel"), link.get("href")) for link in feed.findall(f"{{{ATOM}}}link")] == [
        ("self", "http://h/q"),
        ("next", "http://h/next"),
    ]
    (entry,) = feed.findall(f"{{{ATOM}}}entry")
    assert [etree.QName(element).localname for element in entry] == ["id", "title", "updated", "link"]
    link = entry.find(f"{{{ATOM}}}link")
    assert link is not None and (link.get("rel"), link.get("href")) == ("alternate", "http://h/q/a")
    assert entry.findtext(f"{{{ATOM}}}updated") == "2026-01-05T10:00:00.123Z"


def test_an_error_has_an_integer_code_and_no_namespace() -> None:
    assert (
        write_error(409, "SubCode=40900. a < b\x00")
        == b"<Error><Code>409</Code><Detail>SubCode=40900. a &lt; b?</Detail></Error>"
    )


def test_characters_that_xml_cannot_hold_are_replaced() -> None:
    assert printable("a\x00\x1b\ud800\ufffe\n\t\u00e9\U0001f600") == "a????\n\t\u00e9\U0001f600"


def test_a_moment_that_has_not_been_is_spelled_as_go_wants_it() -> None:
    assert timestamp(None) == "0001-01-01T00:00:00"
    assert timestamp(NOW_MS) == "2026-01-05T10:00:00.123Z"
    assert timestamp(1_767_607_200_000) == "2026-01-05T10:00:00.000Z"
