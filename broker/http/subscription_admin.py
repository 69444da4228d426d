"""The administration API for subscriptions and rules (HTTP contract 2.1, 2.7, 2.8): addresses, rights and
status codes.

    {topic}/subscriptions            {topic}/subscriptions/{name}
    {topic}/subscriptions/{name}/rules      {topic}/subscriptions/{name}/rules/{rule}

As for entities, create and update are the same PUT, and rights come before existence. Unlike an entity, a
subscription or rule that does not exist is 404. Who may manage a topic may manage what is in it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping

from aiohttp import web

from broker.base.clock import Clock
from broker.base.errors import Reason, Refused, not_found_text
from broker.base.slices import Slices
from broker.entities.rules import RuleDescription
from broker.entities.topics import SubscriptionDescription, TopicDescription, subscription_path
from broker.http.addressing import ManagedPath, next_url_of, page_of, url_of
from broker.http.atom import Description, Entry, write_entry, write_feed
from broker.http.atom_answers import answer_entry, answer_feed
from broker.http.description_xml import Elsewhere, check_targets, note_ignored, warn_of_ignored
from broker.http.refusals import HttpRefusal, not_allowed, only_reads
from broker.http.rights import DELETE, LISTEN, READ, WRITE, Rights
from broker.http.rule_xml import read_rule, write_rule
from broker.http.seams import Claim
from broker.http.subscription_xml import (
    FIRST_RULE,
    SETTINGS,
    ignores_first_rule,
    read_first_rule,
    read_subscription,
    write_subscription,
)
from broker.namespace.namespace import Namespace
from broker.namespace.topic import Topic
from broker.operations.message_states import SubqueueCounts
from broker.throttle.memory_mark import Memory

_ALLOWED = "GET, PUT, DELETE"


class SubscriptionAdministration:
    """Answers requests for what is below a topic. One per namespace."""

    def __init__(
        self,
        namespace: Namespace,
        rights: Rights,
        description: Callable[[web.Request], Awaitable[Description]],
        clock: Clock,
        slices: Slices,
        memory: Memory,
        elsewhere: Elsewhere,
    ) -> None:
        """`description` reads the one that a request's body holds."""
        self._namespace, self._subscriptions, self._rights = namespace, namespace.subscriptions, rights
        self._description, self._clock, self._slices = description, clock, slices
        self._memory, self._elsewhere = memory, elsewhere

    async def handle(self, request: web.Request, claim: Claim, where: ManagedPath) -> web.StreamResponse:
        """Serve a path below a topic. Raises HttpRefusal and Refused."""
        path = "/".join((where.entity, *where.below))  # JavaScript's tokens are for this path alone
        match where.below:
            case (_,):
                self._rights.require(claim, path, READ)
                only_reads(request)
                return await self._list(request, where.entity)
            case (_, name):
                self._rights.require(claim, path, _action(request))
                return await self._subscription(request, claim, where.entity, name)
            case (_, name, rules) if rules.casefold() == "rules":
                self._require_reading_rules(claim, path)
                only_reads(request)
                return await self._list_rules(request, where.entity, name)
            case (_, name, rules, rule) if rules.casefold() == "rules":
                if _action(request) == READ:
                    self._require_reading_rules(claim, path)
                else:
                    self._rights.require(claim, path, _action(request))
                return await self._rule(request, where.entity, name, rule)
        self._rights.require(claim, path, READ)
        raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(path))

    # --- subscriptions --------------------------------------------------------------------------------------

    async def _subscription(
        self, request: web.Request, claim: Claim, topic: str, name: str
    ) -> web.StreamResponse:
        match request.method:
            case "GET" | "HEAD":
                return await self._answer(request, topic, self._subscriptions.find(topic, name))
            case "PUT":
                return await self._put(request, claim, topic, name)
            case "DELETE":
                await self._subscriptions.delete(topic, name)
                return web.Response(status=200)
        raise not_allowed(request, _ALLOWED)

    async def _put(self, request: web.Request, claim: Claim, topic: str, name: str) -> web.Response:
        updating = "If-Match" in request.headers
        description = await self._read(request, "SubscriptionDescription")
        previous = self._subscriptions.find(topic, name) if updating else None
        settings = read_subscription(description, None if previous is None else previous.settings)
        path = subscription_path(topic, name)
        check_targets(description, self._elsewhere)
        self._rights.check_forwarding(request, claim, path, settings.forwarding)
        if previous is not None:
            ignores_rule = ignores_first_rule(description, previous)
            subscription = await self._subscriptions.update(topic, name, settings)
            if ignores_rule:
                warn_of_ignored(
                    path, [FIRST_RULE], "It counts at creation. Later, rules are changed one by one."
                )
        else:
            rule = read_first_rule(description)
            self._memory.admit_description()
            subscription = await self._subscriptions.create(topic, name, settings, [rule])
        note_ignored(description, SETTINGS, path)
        return await self._answer(request, topic, subscription, 200 if updating else 201)

    async def _list(self, request: web.Request, topic: str) -> web.StreamResponse:
        skip, count = page_of(request)
        await self._counted(self._subscriptions.topic(topic))
        entity = self._topic(topic)
        counts = await entity.counts_in_turns()
        description = self._subscriptions.topic(topic)
        total = len(description.subscriptions)
        shown = sorted(description.subscriptions, key=lambda each: each.key)[skip : skip + count]
        entries = (write_entry(self._entry(request, entity, each, counts)) for each in shown)
        path = f"{description.name}/Subscriptions"
        return await self._feed(request, "Subscriptions", path, entries, (skip, count, total))

    async def _answer(
        self, request: web.Request, topic: str, subscription: SubscriptionDescription, status: int = 200
    ) -> web.Response:
        await self._namespace.runtime(topic)  # opens the partitions, so that the counts are exact
        return answer_entry(self._entry(request, self._topic(topic), subscription), status)

    def _topic(self, name: str) -> Topic:
        """The running topic of this name. Raises Refused if it was deleted meanwhile."""
        entity = self._namespace.find(name)
        if not isinstance(entity, Topic):
            raise self._namespace.missing(name)
        return entity

    def _entry(
        self,
        request: web.Request,
        topic: Topic,
        subscription: SubscriptionDescription,
        counts: Mapping[str, SubqueueCounts] | None = None,
    ) -> Entry:
        runtime = topic.subscription_runtime(subscription, counts)
        return Entry(
            url_of(request, subscription_path(topic.name, subscription.name)),
            subscription.name,
            self._namespace.name,
            subscription.created_at_ms,
            subscription.updated_at_ms,
            write_subscription(subscription, runtime, request.host),
        )

    # --- rules ----------------------------------------------------------------------------------------------

    async def _rule(self, request: web.Request, topic: str, name: str, rule: str) -> web.StreamResponse:
        match request.method:
            case "GET" | "HEAD":
                found = _existing(topic, self._subscriptions.find(topic, name), rule)
                return self._answer_rule(request, topic, name, found)
            case "PUT":
                updating = "If-Match" in request.headers
                given = read_rule(await self._read(request, "RuleDescription"), rule)
                self._memory.admit_description()
                change: Callable[..., Awaitable[SubscriptionDescription]] = (
                    self._subscriptions.replace_rule if updating else self._subscriptions.add_rule
                )
                found = _existing(topic, await change(topic, name, given), rule)
                return self._answer_rule(request, topic, name, found, 200 if updating else 201)
            case "DELETE":
                await self._subscriptions.remove_rule(topic, name, rule)
                return web.Response(status=200)
        raise not_allowed(request, _ALLOWED)

    async def _list_rules(self, request: web.Request, topic: str, name: str) -> web.StreamResponse:
        skip, count = page_of(request)
        path = self._path(topic, name)
        rules = self._subscriptions.find(topic, name).rules
        shown = rules[skip : skip + count]
        entries = (write_entry(self._rule_entry(request, path, each)) for each in shown)
        return await self._feed(request, "Rules", f"{path}/Rules", entries, (skip, count, len(rules)))

    def _answer_rule(
        self, request: web.Request, topic: str, name: str, rule: RuleDescription, status: int = 200
    ) -> web.Response:
        return answer_entry(self._rule_entry(request, self._path(topic, name), rule), status)

    def _rule_entry(self, request: web.Request, path: str, rule: RuleDescription) -> Entry:
        created = rule.created_at_ms
        url = url_of(request, f"{path}/Rules/{rule.name}")
        return Entry(url, rule.name, self._namespace.name, created, created, write_rule(rule))

    # --- what both have in common ---------------------------------------------------------------------------

    def _path(self, topic: str, name: str) -> str:
        """The path of a subscription as it was spelled at creation: JavaScript takes names from URLs."""
        spelled = self._subscriptions.topic(topic).name
        return subscription_path(spelled, self._subscriptions.find(topic, name).name)

    def _require_reading_rules(self, claim: Claim, path: str) -> None:
        """Who may listen may see rules (HTTP contract 1.7)."""
        if not claim.covers(path, LISTEN):
            self._rights.require(claim, path, READ)

    async def _read(self, request: web.Request, kind: str) -> Description:
        description = await self._description(request)
        if description.kind != kind:
            raise HttpRefusal(400, 40000, f"'{description.kind:.60}' is not a {kind}.")
        return description

    async def _counted(self, topic: TopicDescription) -> None:
        await self._namespace.counted()
        entity = self._namespace.find(topic.name)
        if entity is not None and entity.unknown:  # not counted in time: wait for it, a little longer
            await self._namespace.opened([entity])

    async def _feed(
        self,
        request: web.Request,
        title: str,
        path: str,
        entries: Iterable[bytes],
        page: tuple[int, int, int],
    ) -> web.StreamResponse:
        """A page of a list. `page`: how many entries were skipped, how many are shown, and how many there
        are."""
        pieces = write_feed(
            title, url_of(request, path), next_url_of(request, path, *page), self._clock.now_ms(), entries
        )
        return await answer_feed(request, self._slices, pieces)


def _action(request: web.Request) -> str:
    """What a request does, in the words of refusals."""
    return {"PUT": WRITE, "DELETE": DELETE}.get(request.method, READ)


def _existing(topic: str, subscription: SubscriptionDescription, name: str) -> RuleDescription:
    rule = subscription.rule(name)
    if rule is None:
        path = f"{subscription_path(topic, subscription.name)}/Rules/{name}"
        raise Refused(Reason.ENTITY_NOT_FOUND, not_found_text(path))
    return rule
