"""Durable subscribers of JMS: receivers that attach to a topic and name their subscription by the link.

Their source is the topic's address, with the capability `topic`, a durability, and distribution-mode copy: a
subscriber gets copies of its own of what is sent to the topic. So do the subscriptions of a topic, and the
link is served as a receiver of the one that it names (AMQP contract 5.1a). Subscriptions are created and
deleted by the administration alone.

    link name                               capabilities              client
    name                                    topic                     createDurableConsumer
    name, name|2, …                         topic, shared             createSharedDurableConsumer
    name|global, name|global2, …            topic, shared, global     the same without a client id
"""

from __future__ import annotations

from broker.access.addresses import Address
from broker.base.errors import Reason, Refused, not_found_text
from broker.entities.descriptions import MAIN
from broker.entities.topics import subqueue_name_of, subscription_path
from broker.frontend.connection_view import ConnectionView
from broker.frontend.links.termini import SHARED, is_durable_subscriber
from broker.namespace.entity import Entity
from protocol.links import Link

GLOBAL = "global"
"""The capability of a subscription that belongs to no client id."""
_DELIMITER = "|"
"""JMS clients put it behind the name of a subscription that is shared; the name cannot have it."""


def subscribed(connection: ConnectionView, link: Link, topic: Entity, address: Address) -> Address:
    """The address of the subscription that a durable subscriber of a topic wants; `address` for other
    receivers. Raises Refused(ENTITY_NOT_FOUND)."""
    engine = connection.engine
    if address.subqueue != MAIN or not is_durable_subscriber(engine, link):
        return address
    capabilities = engine.node_capabilities(link)
    name = link.name.partition(_DELIMITER)[0] if SHARED in capabilities else link.name
    client_id = "" if GLOBAL in capabilities else connection.container_id
    of_client = f"{name}${client_id}$D"
    for each in (of_client, name):
        subqueue = subqueue_name_of(each)
        if topic.description.subqueues.number_of(subqueue) is not None:
            return Address(address.entity, subqueue)
    missing = not_found_text(subscription_path(address.entity, f"{name:.100}"))
    raise Refused(
        Reason.ENTITY_NOT_FOUND,
        f"{missing} Subscribers do not create subscriptions: create '{name:.100}' or '{of_client:.200}' with "
        "the administration or in the configuration file.",
    )
