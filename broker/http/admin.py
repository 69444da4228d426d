"""The administration API for entities (HTTP contract 1.7, 2.1, 2.2, 2.8, 2.10): addresses, rights and status
codes.

Create and update are the same PUT; `If-Match` tells them apart. A GET of a path without an entity answers 200
with the feed of its direct children, which is usually empty. Rights are checked before existence, so that
names cannot be probed without them. This module neither reads nor writes files: the namespace makes each
change durable before the answer is sent. `subscription_admin.py` answers for subscriptions and rules.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from functools import partial

from aiohttp import web

from broker.base.clock import Clock
from broker.base.errors import Reason, Refused
from broker.base.slices import Slices
from broker.entities.descriptions import EntityDescription, EntitySettings, key_of
from broker.http.addressing import next_url_of, page_of, read_path, url_of, url_parts
from broker.http.atom import (
    Child,
    Entry,
    write_discovery,
    write_feed,
)
from broker.http.atom_answers import answer_entry, answer_feed
from broker.http.bodies import Bodies
from broker.http.description_xml import Elsewhere, EntityDefaults, check_targets, note_ignored
from broker.http.entry_text import EntryAddress, EntryTexts
from broker.http.kinds import KINDS, EntityXml, listed_at, xml_of
from broker.http.message_paths import message_methods
from broker.http.namespace_info import NAMESPACE_INFO, NamespaceInfo
from broker.http.refusals import HttpRefusal, not_allowed
from broker.http.rights import DELETE, MANAGE, READ, USE, WRITE, Rights
from broker.http.seams import Claim
from broker.http.subscription_admin import SubscriptionAdministration
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.settings.settings import Settings
from broker.throttle.memory_mark import Memory
from broker.throttle.throttle import MANAGEMENT_CREDITS


class Administration:
    """Answers administration requests. One per namespace."""

    def __init__(
        self,
        settings: Settings,
        namespace: Namespace,
        rights: Rights,
        clock: Clock,
        slices: Slices,
        memory: Memory,
        bodies: Bodies,
        elsewhere: Elsewhere,
    ) -> None:
        """`slices` makes long lists take turns with other long work on the event loop. `bodies` are those of
        the whole port. `elsewhere` knows the hosts of other namespaces."""
        self._namespace, self._clock, self._slices = namespace, clock, slices
        self._rights, self._memory = rights, memory
        self._defaults = EntityDefaults(settings.partitioned_by_default, settings.message_kb_max)
        self._description = partial(bodies.description, bytes_max=settings.http_body_bytes_max)
        self._elsewhere = elsewhere
        self._subscriptions = SubscriptionAdministration(
            namespace, self._rights, self._description, clock, slices, memory, elsewhere
        )
        self._info = NamespaceInfo(namespace, clock.now_ms())
        self._entries = EntryTexts(namespace.name)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve every path that no other route matches. Raises HttpRefusal and Refused."""
        claim = self._rights.authenticate(request)
        where = read_path(request.rel_url.raw_path)
        if not where.below and (request.method, where.entity.casefold()) == ("PUT", NAMESPACE_INFO):
            # Never throttled: it may end the throttling.
            self._rights.require(claim, NAMESPACE_INFO, WRITE, of_namespace=True)
            self._info.change(await self._description(request))
            return answer_entry(self._info.entry(request))
        throttle = self._namespace.throttle
        if throttle is not None:
            throttle.admit(MANAGEMENT_CREDITS, frees_memory=request.method == "DELETE")
        if where.below:
            return await self._subscriptions.handle(request, claim, where)
        match where.entity.casefold():
            case path if path == NAMESPACE_INFO:
                self._rights.require_namespace(request, claim, NAMESPACE_INFO)
                return answer_entry(self._info.entry(request))
            case path if (kind := listed_at(path)) is not None:
                return await self._list_kind(request, claim, kind)
        match request.method:
            case "GET" | "HEAD":
                return await self._get(request, claim, where.entity)
            case "PUT":
                return await self._put(request, claim, where.entity)
            case "DELETE":
                return await self._delete(request, claim, where.entity)
        raise not_allowed(request, "GET, PUT, DELETE")

    # --- operations -----------------------------------------------------------------------------------------

    async def _get(self, request: web.Request, claim: Claim, name: str) -> web.StreamResponse:
        entity = self._namespace.describe(name) if name else None
        if entity is None:
            why = self._namespace.missing(name)
            if name and why.reason is not Reason.ENTITY_NOT_FOUND and claim.covers(name, MANAGE):
                raise why
            return await self._discover(request, claim, name)
        self._rights.require(claim, entity.name, READ)
        return await self._entry_response(request, entity, 200)

    async def _discover(self, request: web.Request, claim: Claim, path: str) -> web.StreamResponse:
        """List the direct children of a path that is not an entity, as far as the caller may manage them
        (HTTP contract 2.8).

        Any valid token will do: a caller without rights below the path gets an empty feed.
        """
        skip, count = page_of(request)
        prefix = f"{key_of(path)}/" if path else ""
        updated_ms: dict[str, int] = {}
        paths: dict[str, str] = {}

        def look(entity: Entity) -> None:
            name = entity.name
            if key_of(name).startswith(prefix) and claim.covers(name, MANAGE):
                end = name.find("/", len(prefix))
                key = key_of(name if end < 0 else name[:end])
                updated_ms[key] = max(updated_ms.get(key, 0), entity.description.updated_at_ms)
                if end < 0 or key not in paths:  # prefer an entity's own casing
                    paths[key] = name if end < 0 else name[:end]

        async for _ in self._slices.of(map(look, list(self._namespace.live_entities()))):
            pass
        if not paths:
            self._check_method(request, claim)
        shown = sorted(paths)[skip : skip + count]
        children = (Child(url_of(request, paths[key]), paths[key], updated_ms[key]) for key in shown)
        next_url = next_url_of(request, path, skip, count, len(paths))
        pieces = write_discovery(url_of(request, path), next_url, self._clock.now_ms(), children)
        return await answer_feed(request, self._slices, pieces)

    def _check_method(self, request: web.Request, claim: Claim) -> None:
        """Raises HttpRefusal (405) if the path is about the messages of an entity: an empty feed would look
        as if they had been received."""
        entity, methods = message_methods(request.rel_url.raw_path)
        if entity and self._namespace.describe(entity) and any(claim.covers(entity, each) for each in USE):
            raise not_allowed(request, methods)

    async def _put(self, request: web.Request, claim: Claim, name: str) -> web.Response:
        updating = "If-Match" in request.headers
        self._rights.require(claim, name, WRITE, of_namespace=not updating)
        description = await self._description(request)
        kind = KINDS.get(description.kind)
        if kind is None:
            raise HttpRefusal(
                400, 40000, f"'{description.kind:.60}' is not the description of an entity with this path."
            )
        previous = self._namespace.describe(name)
        if updating and previous is None:
            raise Refused(Reason.ENTITY_NOT_FOUND, f"Entity '{name}' was not found.")
        if previous is not None and type(previous) is not kind.KIND:
            raise Refused(Reason.ENTITY_EXISTS, f"Conflict. '{name}' is an entity of another kind.")
        settings = kind.read(
            description,
            self._defaults,
            previous.settings if updating and previous else None,
            self._clock.now_ms(),
        )
        settings = self._keep_creation_times(settings, previous)
        check_targets(description, self._elsewhere)
        self._rights.check_forwarding(request, claim, name, settings.forwarding)
        if updating:
            entity = await self._namespace.update_entity(name, settings)
        else:
            if previous is None:
                self._memory.admit_description()
            entity = await self._namespace.create_entity(name, settings)
        note_ignored(description, kind.SETTINGS, entity.name)
        return await self._entry_response(request, entity, 200 if updating else 201)

    async def _delete(self, request: web.Request, claim: Claim, name: str) -> web.Response:
        self._rights.require(claim, name, DELETE)
        await self._namespace.delete_entity(name)
        return web.Response(status=200)  # the Python client accepts no other status

    async def _list_kind(self, request: web.Request, claim: Claim, kind: EntityXml) -> web.StreamResponse:
        path = f"$Resources/{kind.TITLE.lower()}"
        self._rights.require_namespace(request, claim, path)
        skip, count = page_of(request)
        await self._namespace.counted()
        entities = self._namespace.entities_between(kind.KIND, skip, skip + count)
        if self._namespace.unknown_count:  # not all were counted in time: wait for these, a little longer
            await self._namespace.opened(entities)
        address = EntryAddress(request.host, *url_parts(request))
        next_url = next_url_of(request, path, skip, count, self._namespace.entity_count(kind.KIND))
        return await self._list(request, kind.TITLE, self._entries.at(address).entries(entities), next_url)

    # --- bodies ---------------------------------------------------------------------------------------------

    def _keep_creation_times(
        self, settings: EntitySettings, previous: EntityDescription | None
    ) -> EntitySettings:
        """Keep the creation time of each existing SAS rule, and its modification time if the rule is
        unchanged."""
        known = (
            {rule.key_name.casefold(): rule for rule in previous.settings.authorization_rules}
            if previous
            else {}
        )
        rules = []
        for rule in settings.authorization_rules:
            old = known.get(rule.key_name.casefold())
            if old is not None:
                rule = replace(rule, created_at_ms=old.created_at_ms)
                if replace(rule, modified_at_ms=old.modified_at_ms) == old:
                    rule = old
            rules.append(rule)
        return replace(settings, authorization_rules=tuple(rules))

    async def _entry_response(
        self, request: web.Request, entity: EntityDescription, status: int
    ) -> web.Response:
        return answer_entry(await self._entry(request, entity), status)

    async def _entry(self, request: web.Request, entity: EntityDescription) -> Entry:
        runtime = await self._namespace.runtime(entity.name)
        description = xml_of(entity).write(entity, runtime, request.host)
        return Entry(
            url_of(request, entity.name),
            entity.name,
            self._namespace.name,
            entity.created_at_ms,
            entity.updated_at_ms,
            description,
        )

    async def _list(
        self, request: web.Request, title: str, entries: Iterable[bytes], next_url: str | None
    ) -> web.StreamResponse:
        url = url_of(request, f"$Resources/{title.lower()}")
        pieces = write_feed(title, url, next_url, self._clock.now_ms(), entries)
        return await answer_feed(request, self._slices, pieces)
