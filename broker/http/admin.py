"""The administration API for queues (HTTP contract 1.7, 2.1, 2.2, 2.8, 2.10): addresses, rights and status
codes.

Create and update are the same PUT; `If-Match` tells them apart. A GET of a path without a queue answers 200
with the feed of its direct children, which is usually empty. Rights are checked before existence, so that
names cannot be probed without them. This module neither reads nor writes files: the namespace makes each
change durable before the answer is sent. Topics, subscriptions and rules come in a later version: lists of
them are empty, and creating one is refused with 501.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterable
from dataclasses import dataclass, replace

import structlog
from aiohttp import web

from broker.base.clock import Clock
from broker.base.errors import Reason, Refused
from broker.base.slices import Slices
from broker.entities.descriptions import EntityDescription, EntitySettings, key_of
from broker.http.answer_portions import answer_in_slices
from broker.http.atom import (
    ENTRY_TYPE,
    FEED_TYPE,
    SERVICE_BUS,
    Child,
    Description,
    Entry,
    WrongXml,
    child,
    parse_entry,
    timestamp,
    top,
    write_discovery,
    write_entry,
    write_feed,
)
from broker.http.bodies import Bodies
from broker.http.description_xml import EntityDefaults
from broker.http.entry_text import Address as EntryAddress
from broker.http.entry_text import EntryTexts
from broker.http.kinds import KINDS, EntityXml, listed_at, xml_of
from broker.http.refusals import HttpRefusal
from broker.http.seams import Claim, TokenVerifier
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.settings.settings import Settings

log = structlog.get_logger("administration")

API_VERSION_DEFAULT = "2021-05"
PAGE_DEFAULT, PAGE_MAX = 100, 1_000
MANAGE = "Manage"
_READ, _WRITE, _DELETE = "EntityRead", "EntityWrite", "EntityDelete"


@dataclass(slots=True, frozen=True)
class Address:
    """The entity that a path names, and what it addresses below that entity."""

    entity: str
    below: tuple[str, ...] = ()
    """The segments from `subscriptions` on; empty if the path ends at the entity."""


def read_address(raw_path: str) -> Address:
    """Split the raw path, then decode its segments: Python and Java escape the slashes in a name, other
    clients do not."""
    segments = [urllib.parse.unquote(segment) for segment in raw_path.split("/")]
    path = "/".join(segments).strip("/").split("/")
    for place, segment in enumerate(path[1:], start=1):
        if segment.casefold() == "subscriptions":
            return Address("/".join(path[:place]), tuple(path[place:]))
    return Address("/".join(path))


class Administration:
    """Answers administration requests. One per broker."""

    def __init__(
        self, settings: Settings, namespace: Namespace, tokens: TokenVerifier, clock: Clock, slices: Slices
    ) -> None:
        """`slices` makes long lists take turns with other long work on the event loop."""
        self._settings, self._namespace, self._tokens, self._clock, self._slices = (
            settings,
            namespace,
            tokens,
            clock,
            slices,
        )
        self._defaults = EntityDefaults(settings.partitioned_by_default, settings.message_kb_max)
        self._bodies = Bodies(settings.http_body_bytes_max)
        self._started_ms = clock.now_ms()
        self._entries = EntryTexts(namespace.name, namespace.runtime_now)

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve every path that no other route matches. Raises HttpRefusal and Refused."""
        claim = self._authenticate(request)
        address = read_address(request.rel_url.raw_path)
        if address.below:
            return self._topic_part(request, claim, address)
        match address.entity.casefold():
            case "$namespaceinfo":
                return self._namespace_info(request, claim)
            case path if (kind := listed_at(path)) is not None:
                return await self._list_kind(request, claim, kind)
            case "$resources/topics":
                self._demand_namespace(request, claim, address.entity)
                return await self._list(request, "Topics", [], None)
        match request.method:
            case "GET" | "HEAD":
                return await self._get(request, claim, address.entity)
            case "PUT":
                return await self._put(request, claim, address.entity)
            case "DELETE":
                return await self._delete(request, claim, address.entity)
        raise HttpRefusal(
            405, 0, f"The method {request.method} is not allowed here.", {"Allow": "GET, PUT, DELETE"}
        )

    # --- operations -----------------------------------------------------------------------------------------

    async def _get(self, request: web.Request, claim: Claim, name: str) -> web.StreamResponse:
        queue = self._namespace.describe(name) if name else None
        if queue is None:
            why = self._namespace.missing(name)
            if name and why.reason is not Reason.ENTITY_NOT_FOUND and claim.covers(name, MANAGE):
                raise why
            return await self._discover(request, claim, name)
        self._require(claim, queue.name, _READ)
        return await self._entry_response(request, queue, 200)

    async def _discover(self, request: web.Request, claim: Claim, path: str) -> web.StreamResponse:
        """List the direct children of a path that is not an entity, as far as the caller may manage them
        (HTTP contract 2.8).

        Any valid token will do: a caller without rights below the path gets an empty feed.
        """
        skip, count = _page(request)
        prefix = f"{key_of(path)}/" if path else ""
        updated_ms: dict[str, int] = {}
        paths: dict[str, str] = {}

        def look(queue: Entity) -> None:
            name = queue.name
            if key_of(name).startswith(prefix) and claim.covers(name, MANAGE):
                end = name.find("/", len(prefix))
                key = key_of(name if end < 0 else name[:end])
                updated_ms[key] = max(updated_ms.get(key, 0), queue.description.updated_at_ms)
                if end < 0 or key not in paths:  # prefer an entity's own casing
                    paths[key] = name if end < 0 else name[:end]

        async for _ in self._slices.of(map(look, list(self._namespace.live_entities()))):
            pass
        shown = sorted(paths)[skip : skip + count]
        children = (Child(_url(request, paths[key]), paths[key], updated_ms[key]) for key in shown)
        next_url = _next_url(request, path, skip, count, len(paths))
        return await self._stream(
            request, write_discovery(_url(request, path), next_url, self._clock.now_ms(), children)
        )

    async def _put(self, request: web.Request, claim: Claim, name: str) -> web.Response:
        updating = "If-Match" in request.headers
        self._require(claim, name, _WRITE, of_namespace=not updating)
        description = await self._read_body(request)
        kind = KINDS.get(description.kind)
        if kind is None:
            raise _not_yet(description.kind)
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
        self._check_forwarding(request, claim, name, settings)
        if updating:
            queue = await self._namespace.update_entity(name, settings)
        else:
            queue = await self._namespace.create_entity(name, settings)
        if unknown := kind.unknown_elements(description):
            shown = [element[:60] for element in unknown[:10]]
            log.warning(
                "queue.elements_ignored",
                entity=queue.name,
                elements=shown,
                advice="No setting of an entity of this kind has these names.",
            )
        return await self._entry_response(request, queue, 200 if updating else 201)

    async def _delete(self, request: web.Request, claim: Claim, name: str) -> web.Response:
        self._require(claim, name, _DELETE)
        await self._namespace.delete_entity(name)
        return web.Response(status=200)  # the Python client accepts no other status

    async def _list_kind(self, request: web.Request, claim: Claim, kind: EntityXml) -> web.StreamResponse:
        path = f"$Resources/{kind.TITLE.lower()}"
        self._demand_namespace(request, claim, path)
        skip, count = _page(request)
        await self._namespace.counted()
        queues = self._namespace.entities_between(kind.KIND, skip, skip + count)
        if self._namespace.unknown_count:  # not all were counted in time: wait for these, a little longer
            await self._namespace.opened(queues)
        entry = self._entries.at(EntryAddress(request.host, *_url_parts(request))).entry
        next_url = _next_url(request, path, skip, count, self._namespace.entity_count(kind.KIND))
        return await self._list(request, kind.TITLE, map(entry, queues), next_url)

    def _namespace_info(self, request: web.Request, claim: Claim) -> web.Response:
        self._demand_namespace(request, claim, "$namespaceinfo")
        info = top("NamespaceInfo", SERVICE_BUS, i="http://www.w3.org/2001/XMLSchema-instance")
        started = timestamp(self._started_ms)
        for name, value in (
            ("CreatedTime", started),
            ("MessagingSKU", self._namespace.tier.sku),
            *([("MessagingUnits", "1")] if self._namespace.tier.sku == "Premium" else []),
            ("ModifiedTime", started),
            ("Name", self._namespace.name),
            ("NamespaceType", "Messaging"),
        ):
            child(info, name, value)
        # Python reads the namespace's name from the title, the other clients read it from the description.
        name = self._namespace.name
        entry = Entry(_url(request, "$namespaceinfo"), name, name, self._started_ms, self._started_ms, info)
        return _xml(write_entry(entry), ENTRY_TYPE)

    def _topic_part(self, request: web.Request, claim: Claim, address: Address) -> web.Response:
        """Answer for subscriptions and rules. None exist, because there are no topics yet."""
        path = "/".join((address.entity, *address.below))
        self._require(claim, path, _READ if request.method in ("GET", "HEAD") else _WRITE)
        if request.method == "PUT":
            raise _not_yet("RuleDescription" if len(address.below) > 2 else "SubscriptionDescription")
        raise self._namespace.missing(path)

    # --- rights ---------------------------------------------------------------------------------------------

    def _authenticate(self, request: web.Request) -> Claim:
        header = request.headers.get("Authorization")
        if not header:
            raise HttpRefusal(401, 40102, "MissingToken: The authorization header was not found.")
        return self._tokens.verify_token(header, self._clock.now_ms(), self._settings.sas_grace_ms)

    def _demand_namespace(self, request: web.Request, claim: Claim, path: str) -> None:
        """Require a key of the namespace, and a method that only reads."""
        self._require(claim, path, _READ, of_namespace=True)
        if request.method not in ("GET", "HEAD"):
            raise HttpRefusal(405, 0, f"The method {request.method} is not allowed here.", {"Allow": "GET"})

    def _require(self, claim: Claim, path: str, action: str, *, of_namespace: bool = False) -> None:
        """Require Manage on the path, before anything is looked up, so that names cannot be probed.

        `of_namespace` requires a key of the namespace. The token's own scope may still be as narrow as the
        path: JavaScript signs each URL separately.
        """
        if claim.covers(path, MANAGE) and (claim.of_namespace or not of_namespace):
            return
        if action == _READ:
            raise HttpRefusal(401, 40100, f"Manage,{action} claims required for this operation.")
        raise HttpRefusal(401, 40100, f"Authorization failed for specified action: Manage,{action}.")

    def _check_forwarding(
        self, request: web.Request, claim: Claim, name: str, settings: EntitySettings
    ) -> None:
        """Require Manage on each forwarding destination, by the same token or by a second one (HTTP contract
        1.4)."""
        for target, header in (
            (settings.forwarding[0], "ServiceBusSupplementaryAuthorization"),
            (settings.forwarding[1], "ServiceBusDlqSupplementaryAuthorization"),
        ):
            if target is None:
                continue
            if not claim.covers(target, MANAGE):
                second = request.headers.get(header)
                if not second or not self._tokens.verify_token(
                    second, self._clock.now_ms(), self._settings.sas_grace_ms
                ).covers(target, MANAGE):
                    raise HttpRefusal(
                        401,
                        40100,
                        (
                            f"Manage on the forwarding destination '{target}' is required, in the header "
                            f"{header}."
                        ),
                    )
            if self._namespace.describe(target) is None and key_of(target) != key_of(
                name
            ):  # the namespace refuses forwarding to itself
                raise HttpRefusal(400, 40400, "The auto forwarding destination entity does not exist.")

    # --- bodies ---------------------------------------------------------------------------------------------

    async def _read_body(self, request: web.Request) -> Description:
        limit = self._settings.http_body_bytes_max
        body = bytearray()
        with self._bodies.read() as counted:
            async for chunk in request.content.iter_any():
                if len(body) + len(chunk) > limit:
                    raise HttpRefusal(413, 0, f"The body is larger than the limit of {limit} bytes.")
                counted.grows(len(chunk))
                body += chunk
            try:
                return parse_entry(bytes(body))
            except WrongXml as wrong:
                raise HttpRefusal(400, 40000, str(wrong)) from wrong

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
        self, request: web.Request, queue: EntityDescription, status: int
    ) -> web.Response:
        return _xml(write_entry(await self._entry(request, queue)), ENTRY_TYPE, status)

    async def _entry(self, request: web.Request, queue: EntityDescription) -> Entry:
        runtime = await self._namespace.runtime(queue.name)
        description = xml_of(queue).write(queue, runtime, request.host)
        return Entry(
            _url(request, queue.name),
            queue.name,
            self._namespace.name,
            queue.created_at_ms,
            queue.updated_at_ms,
            description,
        )

    async def _list(
        self, request: web.Request, title: str, entries: Iterable[bytes], next_url: str | None
    ) -> web.StreamResponse:
        url = _url(request, f"$Resources/{title.lower()}")
        return await self._stream(request, write_feed(title, url, next_url, self._clock.now_ms(), entries))

    async def _stream(self, request: web.Request, pieces: Iterable[bytes]) -> web.StreamResponse:
        return await answer_in_slices(request, self._slices, pieces, FEED_TYPE)


def _url(request: web.Request, path: str) -> str:
    """The absolute URL under the host name that the client used. JavaScript takes an entity's name from
    it."""
    start, end = _url_parts(request)
    return f"{start}{urllib.parse.quote(path, safe='/$~')}{end}"


def _url_parts(request: web.Request) -> tuple[str, str]:
    """The parts of a URL before and after its path."""
    version = urllib.parse.quote(request.query.get("api-version", API_VERSION_DEFAULT), safe="")
    return f"{request.scheme}://{request.host}/", f"?api-version={version}"


def _page(request: web.Request) -> tuple[int, int]:
    """How many entries of a list to skip, and how many to show."""
    return _number(request, "$skip", 0), min(_number(request, "$top", PAGE_DEFAULT), PAGE_MAX)


def _next_url(request: web.Request, path: str, skip: int, count: int, total: int) -> str | None:
    """The URL of the next page of a list; None on the last page."""
    return (
        f"{_url(request, path)}&%24skip={skip + count}&%24top={count}"
        if count and skip + count < total
        else None
    )


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise HttpRefusal(400, 40000, f"The value of {name} is not a whole number.")
    return int(text)


def _not_yet(kind: str) -> HttpRefusal:
    return HttpRefusal(
        501,
        0,
        f"{kind.removesuffix('Description')}s come in a later version of this broker; queues can be created.",
    )


def _xml(body: bytes, content_type: str, status: int = 200) -> web.Response:
    return web.Response(status=status, body=body, headers={"Content-Type": content_type})
