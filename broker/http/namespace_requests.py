"""What the HTTP port does for one namespace: administration, messages, and operations of our own."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web

from broker.base.clock import Clock
from broker.base.slices import Slices
from broker.http.admin import Administration
from broker.http.bodies import Bodies
from broker.http.description_xml import Elsewhere
from broker.http.message_paths import read_message_path
from broker.http.messages import MessageRequests
from broker.http.own_operations import OwnRequests, is_own
from broker.http.receivers import Waiting
from broker.http.rights import Rights
from broker.namespace.namespaces import ServedNamespace
from broker.throttle.memory_mark import Memory


class NamespaceRequests:
    """Answers the requests to one namespace."""

    def __init__(
        self,
        served: ServedNamespace,
        clock: Clock,
        slices: Slices,
        memory: Memory,
        waiting: Waiting,
        bodies: Bodies,
        message_id: Callable[[], str],
        elsewhere: Elsewhere,
    ) -> None:
        """`waiting` and `bodies` are those of the whole port; `message_id` makes ids for messages that have
        none; `elsewhere` knows the hosts of other namespaces."""
        namespace, settings = served.namespace, served.settings
        rights = Rights(namespace, served.authorizer, clock, settings.sas_grace_ms)
        self._administration = Administration(
            settings, namespace, rights, clock, slices, memory, bodies, elsewhere
        )
        self._messages = MessageRequests(
            namespace, rights, clock, memory, waiting, bodies, settings.receivers_per_entity_max, message_id
        )
        self._own = OwnRequests(namespace, rights, memory, bodies)

    def stop(self) -> None:
        """The broker stops: receivers that wait for messages are answered now."""
        self._messages.stop()

    async def administer(self, request: web.Request) -> web.StreamResponse:
        """Serve a request that has a token, as administration. Raises HttpRefusal and Refused."""
        return await self._administration.handle(request)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve a request for an operation of our own, about messages, or administration. Raises HttpRefusal
        and Refused."""
        raw_path = request.rel_url.raw_path
        if is_own(raw_path):
            return await self._own.handle(request)
        path = read_message_path(request.method, raw_path)
        if path is not None:
            return await self._messages.handle(request, path)
        return await self._administration.handle(request)
