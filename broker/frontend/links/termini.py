"""Checks what an attach asks of its source and target, and refuses what the broker does not support.

A field that is accepted and ignored misleads the client: if a filter is ignored, a receiver removes
messages that it was meant to leave alone. So such an attach is refused (AMQP contract 5.2a). Fields that
ordinary clients set without relying on them (durability, expiry, outcomes) are echoed.
"""

from __future__ import annotations

from typing import Any

from broker.access.addresses import Address, address_host
from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.namespace.entity import Entity
from broker.rules.selectors import Selector, compile_selector
from protocol.codec import DecodeError, Described, Long, Symbol, UInt
from protocol.engine import Engine
from protocol.links import Link

SESSION_FILTERS = (
    "com.microsoft:session-filter",
    "com.microsoft:non-exclusive-session-filter",
    "com.microsoft:non-exclusive-session-filter:list",
)
"""The keys under which clients ask for a message session (AMQP contract 5.4); `session_link.py` reads
them."""
RANGE = "partibus:range"
"""The key of the filter with which a browse reads a range of one partition; `range_link.py` reads it."""
GENERATION, PARTITIONS = "partibus:generation", "partibus:partitions"
DUPLICATE_WINDOW = "partibus:duplicate-detection-window"
SELECTOR = "apache.org:selector-filter:string"
FILTER_TYPES = {
    0x0000_468C_0000_0003: "apache.org:no-local-filter:list",
    0x0000_468C_0000_0004: SELECTOR,
}
"""Filters that plain clients send under keys of their own choice, by descriptor (the registry of AMQP
filters)."""


SHARED = "shared"
"""The capability of a subscription that several receivers share."""


def is_durable_subscriber(engine: Engine, link: Link) -> bool:
    """Whether a link is a JMS client's durable subscriber of a topic (AMQP contract 5.1a)."""
    return not link.incoming and link.durable and "topic" in engine.node_capabilities(link)


def check_host(connection: ConnectionView, address: str) -> None:
    """Check that an address does not name the host of another namespace than the connection's. Raises
    Refused."""
    other = connection.services.namespaces.elsewhere(address_host(address), connection.served)
    if other is not None:
        raise Refused(
            Reason.NOT_ALLOWED,
            f"'{address:.300}' is in the namespace '{other}', and this connection is to "
            f"'{connection.served.namespace.name}'.",
        )


def check_node(engine: Engine, link: Link, entity: Entity) -> None:
    """Raise Refused if a link to an entity asks for something the broker does not support. Receivers check
    their session filter themselves."""
    filters = filters_of(engine, link)
    for name, value in filters.items():
        if link.incoming or not (
            name in SESSION_FILTERS
            or (name == RANGE and link.copies)
            or (_type_of(name, value) == SELECTOR and filters.keys().isdisjoint((RANGE, *SESSION_FILTERS)))
        ):
            raise _not_applied(name, value)
    for capability in engine.node_capabilities(link):
        if capability in entity.FOREIGN_CAPABILITIES:
            if capability == SHARED and is_durable_subscriber(engine, link):
                continue
            raise Refused(
                Reason.NOT_IMPLEMENTED,
                f"The attach asks for a node with the capability '{capability}', but "
                f"{entity.FOREIGN_BECAUSE}",
            )


def generation_of(engine: Engine, link: Link, entity: Entity) -> dict[Any, Any]:
    """The properties that tell a client which generation of the entity it is attached to, how many
    partitions it has and for how long it knows message-ids, if the attach asks for them (AMQP contract
    7.6.1). Raises Refused if the client expects another generation."""
    properties = engine.link_properties(link)
    if GENERATION not in properties:
        return {}
    expected, generation = properties[GENERATION], entity.description.generation
    if isinstance(expected, str) and expected != generation:
        raise Refused(
            Reason.ENTITY_NOT_FOUND,
            f"The generation '{expected:.100}' of '{entity.name}' is gone; this one is '{generation}'.",
        )
    told: dict[Any, Any] = {
        Symbol(GENERATION): generation,
        Symbol(PARTITIONS): UInt(entity.description.partitions),
    }
    settings = entity.description.settings
    if settings.requires_duplicate_detection:
        told[Symbol(DUPLICATE_WINDOW)] = Long(settings.duplicate_detection_window_ms)
    return told


def asks_for_session(engine: Engine, link: Link) -> bool:
    """Whether an attach has a session filter. Raises Refused if its filters cannot be read."""
    return not filters_of(engine, link).keys().isdisjoint(SESSION_FILTERS)


def asks_for_range(engine: Engine, link: Link) -> bool:
    """Whether an attach has the filter of a range. Raises Refused if its filters cannot be read."""
    return RANGE in filters_of(engine, link)


def selector_of(engine: Engine, link: Link) -> Selector | None:
    """The selector of an attach; None if it has none. Raises Refused if it is not valid."""
    found = [value for name, value in filters_of(engine, link).items() if _type_of(name, value) == SELECTOR]
    if not found:
        return None
    text = found[0].value if isinstance(found[0], Described) else found[0]
    if len(found) > 1 or not isinstance(text, str):
        raise Refused(Reason.ARGUMENT, "A receiver has one selector, which is a string.")
    return compile_selector(text)


def check_sessions(engine: Engine, link: Link, queue: Entity, address: Address) -> None:
    """Raise Refused if a link that receives without a session or browses needs one, or asks for one."""
    if queue.requires_session(address.subqueue):
        raise Refused(
            Reason.NOT_ALLOWED,
            f"It is not possible for an entity that requires sessions "
            f"('{queue.path_of(address.subqueue)}') to create a non-sessionful message receiver.",
        )
    if asks_for_session(engine, link):
        raise no_session(queue, address.subqueue)


def no_session(queue: Entity, subqueue: str) -> Refused:
    """The refusal of a request for a session of an entity that has none."""
    return Refused(
        Reason.NOT_ALLOWED,
        f"The entity '{queue.path_of(subqueue)}' does not require sessions: it has no session to receive "
        "from.",
    )


def check_request_node(engine: Engine, link: Link) -> None:
    """Raise Refused if a link to `$cbs` or `$management` asks for something the broker does not support."""
    for name, value in filters_of(engine, link).items():
        raise _not_applied(name, value)
    if link.copies and not link.incoming:
        raise Refused(
            Reason.NOT_IMPLEMENTED,
            "Responses cannot be browsed: attach without the distribution mode 'copy'.",
        )


def check_dynamic(engine: Engine, link: Link) -> None:
    """Raise Refused if the link asks for a dynamic node (§3.5.3, §3.5.4)."""
    if engine.source_is_dynamic(link) or engine.target_is_dynamic(link):
        raise Refused(
            Reason.NOT_IMPLEMENTED, "Dynamic nodes are not supported: attach to an existing entity."
        )


def filters_of(engine: Engine, link: Link) -> dict[str, Any]:
    """The filter set of an attach, by key. Raises Refused(DECODE)."""
    try:
        return engine.source_filter(link)
    except DecodeError as error:
        raise Refused(Reason.DECODE, f"The source's filter is not a filter set: {error}.") from error


def _type_of(name: str, value: Any) -> Any:
    """What kind of filter this is: its descriptor, or its key if it is not described."""
    kind = value.descriptor if isinstance(value, Described) else name
    return FILTER_TYPES.get(kind, kind) if isinstance(kind, int) else kind


def _not_applied(name: str, value: Any) -> Refused:
    kind = _type_of(name, value)
    what = f"'{name:.100}'" if kind == name else f"'{name:.100}' ({kind!s:.100})"
    return Refused(
        Reason.NOT_IMPLEMENTED,
        (
            f"The filter {what} is not supported by this version. Attach without it, and filter messages "
            "in the client."
        ),
    )
