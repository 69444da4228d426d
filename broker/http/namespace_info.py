"""The namespace's information, `$namespaceinfo`: its tier and its messaging units, which may change while the
broker runs (HTTP contract 2.6, 6.3)."""

from __future__ import annotations

from aiohttp import web

from broker.entities.tiers import MESSAGING_UNITS, MESSAGING_UNITS_TEXT
from broker.http.addressing import url_of
from broker.http.atom import INSTANCE, SERVICE_BUS, Description, Entry, child, timestamp, top
from broker.http.refusals import HttpRefusal
from broker.namespace.namespace import Namespace
from broker.throttle.resources import ResourceThrottle

NAMESPACE_INFO = "$namespaceinfo"
"""Its path, in small letters."""


class NamespaceInfo:
    """The information of one namespace."""

    def __init__(self, namespace: Namespace, started_ms: int) -> None:
        """`started_ms`: when the broker started, which clients are shown as the time of creation."""
        self._namespace, self._started_ms = namespace, started_ms

    def entry(self, request: web.Request) -> Entry:
        """The information, as an entry for this request."""
        name, tier = self._namespace.name, self._namespace.tier
        throttle = self._namespace.throttle
        units = throttle.units if isinstance(throttle, ResourceThrottle) else 1
        info = top("NamespaceInfo", SERVICE_BUS, i=INSTANCE)
        started = timestamp(self._started_ms)
        for element, value in (
            ("CreatedTime", started),
            ("MessagingSKU", tier.sku),
            *([("MessagingUnits", str(units))] if tier.sku == "Premium" else []),
            ("ModifiedTime", started),
            ("Name", name),
            ("NamespaceType", "Messaging"),
        ):
            child(info, element, value)
        # Python reads the namespace's name from the title, the other clients read it from the description.
        return Entry(url_of(request, NAMESPACE_INFO), name, name, self._started_ms, self._started_ms, info)

    def change(self, description: Description) -> None:
        """Change the messaging units until the broker ends. Other elements may come as they were read.

        Raises HttpRefusal (400) for a number that is not possible, a change of anything else, and in the
        other tiers.
        """
        throttle = self._namespace.throttle
        if not isinstance(throttle, ResourceThrottle):
            raise HttpRefusal(400, 40000, "Messaging units can be changed in the premium tier only.")
        if description.kind != "NamespaceInfo":
            raise HttpRefusal(400, 40000, f"'{description.kind:.60}' is not the description of a namespace.")
        for name, current in (("MessagingSKU", self._namespace.tier.sku), ("Name", self._namespace.name)):
            if (value := description.values.get(name, "").strip()) not in ("", current):
                raise HttpRefusal(
                    400,
                    40000,
                    f"The property '{name}' cannot be changed to '{value:.60}': it is '{current}'.",
                )
        given = description.values.get("MessagingUnits", "").strip()
        if given not in map(str, MESSAGING_UNITS):
            raise HttpRefusal(
                400,
                40000,
                f"The specified value '{given:.20}' is invalid. MessagingUnits: {MESSAGING_UNITS_TEXT}.",
            )
        throttle.change_units(int(given))
