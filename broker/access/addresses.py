"""Entity addresses as clients spell them, and what they mean (AMQP contract 3).

    amqps://host:port/orders      /orders      orders      percent%20encoded      topic/Subscriptions/sub
    …/$DeadLetterQueue            …/$Transfer/$DeadLetterQueue          …/$management          $cbs

Scheme and authority are cut off. The rest is percent-decoded and loses its slashes at both ends. Suffixes
match in any case. This module does not know whether the entity exists. An attach is answered with the address
as the client sent it, never with a form made here.
"""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import unquote

from broker.entities.descriptions import DEAD_LETTER, MAIN, TRANSFER_DEAD_LETTER
from broker.entities.topics import subqueue_name_of

NODE_CBS, NODE_MANAGEMENT = "$cbs", "$management"

ENTITY_CHARACTERS_MAX = 260
"""The longest path of an entity (AMQP contract 3)."""

_SUBSCRIPTIONS = "subscriptions"
_ILLEGAL = frozenset("@?#*\\")


class BadAddress(ValueError):
    """The text is not an entity's address; the message says why."""


@dataclass(slots=True, frozen=True)
class Address:
    """Where a link leads."""

    entity: str
    """As the client spelled it; empty for `$cbs`. That of a subscription is its topic."""
    subqueue: str = MAIN
    """`descriptions.MAIN`, `DEAD_LETTER` or `TRANSFER_DEAD_LETTER`; behind the name of a subscription, if
    the address has one (`topics.SubscriptionDescription.subqueue_name`)."""
    node: str = ""
    """`NODE_CBS` or `NODE_MANAGEMENT` if the address leads to that node and not to messages."""

    @property
    def path(self) -> str:
        """The path that a claim must cover. A claim on an entity covers its subqueues and its node."""
        return "/".join(part for part in (self.entity, self.subqueue, self.node) if part)


def parse_address(text: str) -> Address:
    """Parse an address. Raises BadAddress."""
    segments = _path(text).split("/")
    if [segment.casefold() for segment in segments] == [NODE_CBS]:
        return Address("", MAIN, NODE_CBS)
    node, subqueue = "", MAIN
    if segments[-1].casefold() == NODE_MANAGEMENT:
        node = NODE_MANAGEMENT
        del segments[-1]
    for suffix in (TRANSFER_DEAD_LETTER, DEAD_LETTER):
        length = suffix.count("/") + 1
        if "/".join(segments[-length:]).casefold() == suffix:
            subqueue = suffix
            del segments[-length:]
            break
    entity = _checked_entity(segments, text)
    topic, _, subscription = entity.rpartition("/")
    topic, _, middle = topic.rpartition("/")
    if topic and middle.casefold() == _SUBSCRIPTIONS:
        entity = topic
        subqueue = "/".join(filter(None, (subqueue_name_of(subscription), subqueue)))
    return Address(entity, subqueue, node)


def audience_path(audience: str) -> str:
    """The entity path of a token's audience, or of a SAS token's resource; "" for the whole namespace.

    Scheme, authority and query are cut off, slashes trimmed, and case folded (AMQP contract 2.5). Without a
    scheme, the first part is the host: `host/orders`, `host`. The text is already decoded.
    """
    _, scheme, rest = audience.partition("://")
    without_scheme = rest if scheme else audience
    _, _, path = without_scheme.partition("?")[0].partition("/")
    return path.strip("/").casefold()


def audience_host(audience: str) -> str:
    """The host of a token's audience, or of a SAS token's resource, as `audience_path` reads it."""
    _, scheme, rest = audience.partition("://")
    without_scheme = rest if scheme else audience
    return host_of(without_scheme.partition("?")[0].partition("/")[0])


def address_host(address: str) -> str:
    """The host of an entity address; "" if it has none."""
    _, scheme, rest = address.partition("://")
    return host_of(rest.partition("/")[0]) if scheme else ""


def host_of(authority: str) -> str:
    """The host of an authority in the form used for comparison: case folded, without port, brackets and the
    final dot of the root."""
    host = authority.strip().rpartition("@")[2].casefold()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    name, _, port = host.rpartition(":")
    has_port = name != "" and ":" not in name and (port == "" or port.isdecimal())
    return (name if has_port else host).removesuffix(".")


def _path(text: str) -> str:
    _, scheme, rest = text.partition("://")
    if scheme:
        _, _, text = rest.partition("/")
    try:
        return unquote(text, errors="strict").strip("/")
    except UnicodeDecodeError as error:
        raise BadAddress(f"The address '{text:.300}' is not percent-encoded UTF-8.") from error


def _checked_entity(segments: list[str], text: str) -> str:
    entity = "/".join(segments)
    if not entity:
        raise BadAddress(f"The address '{text:.300}' names no entity.")
    if len(entity) > ENTITY_CHARACTERS_MAX:
        raise BadAddress(
            f"The entity path has {len(entity)} characters; the limit is {ENTITY_CHARACTERS_MAX}."
        )
    if not all(segments) or any(segment.startswith("$") for segment in segments):
        raise BadAddress(
            f"'{entity}' is not an entity path: one of its segments is empty or begins with '$'."
        )
    if not {".", ".."}.isdisjoint(segments):
        raise BadAddress(f"'{entity}' is not an entity path: its segments must not be '.' or '..'.")
    if not entity.isprintable() or not _ILLEGAL.isdisjoint(entity):
        raise BadAddress(f"'{entity}' is not an entity path: it contains a character that is not allowed.")
    return entity
