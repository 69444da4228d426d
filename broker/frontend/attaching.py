"""Finds what serves a link that a client attaches: an entity's sender or receiver, or a request node.

Knows addresses, rights and the kinds of links. Each kind of link checks its own demands on the entity.
"""

from __future__ import annotations

from collections.abc import Callable

from broker.access.addresses import NODE_CBS, NODE_MANAGEMENT, Address, BadAddress, parse_address
from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.browse import BrowseLink
from broker.frontend.links.coordinator import CoordinatorLink
from broker.frontend.links.copies import CopyLink
from broker.frontend.links.delayed_attach import DelayedAttach, Later
from broker.frontend.links.incoming import IncomingLink
from broker.frontend.links.outgoing import OutgoingLink
from broker.frontend.links.range_link import RangeLink
from broker.frontend.links.session_link import SessionLink
from broker.frontend.links.subscribers import subscribed
from broker.frontend.links.termini import (
    asks_for_range,
    asks_for_session,
    check_dynamic,
    check_host,
    check_node,
    check_request_node,
    is_durable_subscriber,
)
from broker.frontend.links.via_link import ViaLink
from broker.frontend.nodes.cbs import CbsNode
from broker.frontend.nodes.management import ManagementNode
from broker.frontend.nodes.request_node import RequestLink, RequestNode, ResponseLink
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.refusal_wording import error_of
from protocol.links import Link

EntityLink = type[IncomingLink] | type[OutgoingLink] | type[BrowseLink] | type[RangeLink]

Resolve = Callable[[ConnectionView, Link, Address], Later | None]
"""Finds what serves a link to an entity, and accepts the link or says what it waits for. Raises Refused."""


class Attaching:
    """The attaches of one connection. Owned by it."""

    __slots__ = ("_connection", "_engine", "_resolve", "nodes")

    def __init__(self, connection: ConnectionView, resolve: Resolve) -> None:
        self._connection, self._engine, self._resolve = connection, connection.engine, resolve
        self.nodes: dict[tuple[int, str], RequestNode] = {}
        """Request nodes by AMQP session and address, for as long as they have links."""

    def attach(self, link: Link) -> None:
        """Serve or refuse a link that the client has attached."""
        try:
            links_max = self._connection.services.settings.links_per_connection_max
            if self._engine.link_count > 2 * links_max:
                # Links beyond the maximum were refused. A client that does not end them keeps memory in use.
                self._connection.close(
                    Refused(
                        Reason.QUOTA_EXCEEDED,
                        f"A connection may have {links_max} links; as many more were refused and not ended.",
                    )
                )
            if self._engine.link_count > links_max:
                raise Refused(Reason.QUOTA_EXCEEDED, f"A connection may have at most {links_max} links.")
            self._attach(link)
        except Refused as why:
            self._engine.refuse_link(link, error_of(why))

    def _attach(self, link: Link) -> None:
        if link.target_is_coordinator:
            CoordinatorLink.attach(self._connection, link)
            return
        text = link.target_address if link.incoming else link.source_address
        check_dynamic(self._engine, link)  # a dynamic node has no address to parse
        if text is None and not link.incoming:
            raise Refused(
                Reason.NOT_IMPLEMENTED,
                "An attach without a source asks for a link that was detached earlier, and none is kept. JMS "
                "clients unsubscribe in this way: delete the subscription with the administration instead.",
            )
        try:
            check_host(self._connection, text or "")
            address = parse_address(text or "")
        except BadAddress as error:
            raise Refused(Reason.ARGUMENT, str(error)) from error
        try:
            self._attach_to(link, address)
        except Refused as why:
            entity: Entity | None = self._connection.served.namespace.find(address.entity)
            if entity is not None:
                entity.meter.refused(why.reason, 1)
            raise

    def _attach_to(self, link: Link, address: Address) -> None:
        if address.node:
            check_request_node(self._engine, link)
            self._attach_to_request_node(link, address)
        elif later := self._resolve(self._connection, link, address):
            DelayedAttach(self._connection, link, later)

    def _attach_to_request_node(self, link: Link, address: Address) -> None:
        """Attach a link of a request/response pair to the pair's node, one per AMQP session (AMQP contract
        2.1, 7.1)."""
        key = (id(link.session), f"{address.entity}/{address.subqueue}/{address.node}".casefold())
        node = self.nodes.get(key)
        if node is None:
            handler, rights = self._handler(address)
            node = self.nodes[key] = RequestNode(
                handler, address.path, rights, lambda: self.nodes.pop(key, None)
            )
        if link.incoming:
            RequestLink.attach(self._connection, link, node)
        else:
            ResponseLink.attach(self._connection, link, node)

    def _handler(self, address: Address) -> tuple[CbsNode | ManagementNode, tuple[str, ...]]:
        """Create the handler of a node; returns it with the rights that permit using the node, each
        sufficient."""
        if address.node == NODE_CBS:
            return CbsNode(self._connection), ()
        assert address.node == NODE_MANAGEMENT
        namespace = self._connection.served.namespace
        queue: Entity | None = namespace.find(address.entity)
        rights = ("Listen", "Send")
        self._connection.authorize(address.path, *rights)
        if queue is None or queue.description.subqueues.number_of(address.subqueue) is None:
            raise missing(namespace, queue, address)
        return ManagementNode(self._connection, queue, address), rights


def missing(namespace: Namespace, entity: Entity | None, address: Address) -> Refused:
    """Why there is nothing at an address, although there may be an entity."""
    path = "/".join(filter(None, (address.entity, address.subqueue)))
    return namespace.missing(address.entity if entity is None else path)


def attach_to_entity(connection: ConnectionView, link: Link, address: Address) -> Later | None:
    """Attach a link to the entity of its address (`Resolve`)."""
    namespace = connection.served.namespace
    if link.incoming:
        served_by: EntityLink = IncomingLink
    elif link.copies and not is_durable_subscriber(connection.engine, link):
        served_by = RangeLink if asks_for_range(connection.engine, link) else BrowseLink
    else:
        served_by = OutgoingLink
    # Before existence: clients must not probe for names.
    connection.authorize(address.path, *served_by.rights)
    queue = namespace.find(address.entity)
    if queue is None or queue.description.subqueues.number_of(address.subqueue) is None:
        raise missing(namespace, queue, address)
    check_node(connection.engine, link, queue)
    address = subscribed(connection, link, queue, address)
    if not link.incoming:
        queue.check_one_more_receiver(connection.served.settings.receivers_per_entity_max)
    later: Later | None = None
    if served_by is OutgoingLink and asks_for_session(connection.engine, link):
        later = SessionLink.ask(connection, link, queue, address)
    elif not (served_by is IncomingLink and ViaLink.attach_via(connection, link, queue, address)):
        served_by.attach(connection, link, queue, address)
    if link.session.context is None and not issubclass(served_by, CopyLink):
        link.session.context = queue  # transactions of this AMQP session go through it (`via_entity`)
    return later
