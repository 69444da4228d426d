"""The claims of a connection's client: what they permit, when they end, and which links end with them.

A client logs in with SASL PLAIN or puts tokens to `$cbs` (AMQP contract 2). When a token expires, or its key
is removed or changed, links that no other token permits are closed. A connection that presents no valid claim
in time is closed. Runs in the event loop and never blocks.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable, Sequence
from typing import cast

import structlog

from broker.access.addresses import audience_path
from broker.access.sas import Claim, reaches
from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView, ServedLink
from broker.namespace.namespaces import ServedNamespace

log = structlog.get_logger("connection")

NO_CREDENTIALS = (
    " This connection has presented no valid credentials: put a token to '$cbs', or log in with SASL PLAIN, "
    "with the name of a key of the namespace as user and the key as password."
)
TOKENS_MAX = 1_000
STOPS_SENDING_WITHIN_S = 2.0
"""How long to accept messages that a client sent before it learned that its links were closed."""
TIMER_MS_MAX = 86_400_000
"""Tokens may be valid for years, but the event loop's timers only last days."""


class Tokens:
    """The claims of one connection. Owned by it."""

    __slots__ = (
        "_connection",
        "_expiry_timer",
        "_logins",
        "_loop",
        "_services",
        "_unclaimed_timer",
        "claims",
    )

    def __init__(self, connection: ConnectionView) -> None:
        self.claims: dict[str, Claim] = {}
        """Claims by the audience they were put for; "" holds the claim of a SASL PLAIN login."""
        self._logins: dict[ServedNamespace, Claim] = {}
        """What a SASL PLAIN login permits, by namespace, until the connection is open."""
        self._connection, self._services = connection, connection.services
        self._loop = asyncio.get_running_loop()
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._unclaimed_timer: asyncio.TimerHandle | None = None

    def log_in(self, user: str, password: str, namespaces: Iterable[ServedNamespace]) -> bool:
        """Check a SASL PLAIN login to one of these namespaces: few clients say to which before the open.
        Once the connection is open, the client has the rights of the key in its namespace."""
        for served in namespaces:
            with contextlib.suppress(Refused):
                self._logins[served] = served.authorizer.verify_key(user, password)
        return bool(self._logins)

    @property
    def has_logged_in(self) -> bool:
        """Whether the client has given a key of one of the namespaces."""
        return bool(self._logins)

    def opened(self) -> None:
        """The namespace is known: a login counts if it was for this one. Raises Refused(UNAUTHORIZED)."""
        logins, self._logins = self._logins, {}
        served = self._connection.served
        if not logins:
            return
        claim = served.authorizer.in_force(logins[served]) if served in logins else None
        if claim is None:
            raise Refused(
                Reason.UNAUTHORIZED,
                "Unauthorized access. The key of the login is not one of the namespace "
                f"'{served.namespace.name}', which the hostname of the open means.",
            )
        self.claims[""] = claim

    def put(self, audience: str, claim: Claim) -> None:
        """Store the claim of a token put for an audience; it replaces the previous one (AMQP contract
        2.7)."""
        if audience not in self.claims and len(self.claims) >= TOKENS_MAX:
            raise Refused(Reason.QUOTA_EXCEEDED, f"A connection may hold at most {TOKENS_MAX} tokens.")
        self.claims[audience] = claim
        self._connection.engine.lift_restriction()
        if self._unclaimed_timer is not None:
            self._unclaimed_timer.cancel()
            self._unclaimed_timer = None
        self._watch()

    def authorize(self, path: str, *rights: str) -> None:
        """Raise Refused(UNAUTHORIZED) unless an unexpired claim grants one of the rights."""
        now_ms = self._services.clock.now_ms()
        for claim in self.claims.values():
            if claim.lasts(now_ms) and claim.covers_any(path, rights):
                return
        wanted = "' or '".join(rights)
        raise Refused(
            Reason.UNAUTHORIZED,
            f"Unauthorized access. '{wanted}' claim(s) are required to perform this operation. Resource: 'sb://"
            f"{self._connection.served.namespace.name}/{path}'.{'' if self.claims else NO_CREDENTIALS}",
        )

    # --- a connection without a claim -----------------------------------------------------------------------

    def watch_unclaimed(self) -> None:
        """Close the connection if it presents no valid claim in time: it uses memory (AMQP contract 1.2)."""
        timeout_ms = self._services.settings.unclaimed_timeout_ms
        if not self.claims and timeout_ms and self._unclaimed_timer is None:
            self._unclaimed_timer = self._loop.call_later(timeout_ms / 1000, self._stayed_unclaimed)

    def _stayed_unclaimed(self) -> None:
        self._unclaimed_timer = None
        seconds = self._services.settings.unclaimed_timeout_ms / 1000
        connection = self._connection
        self._services.sparing.info(
            log, "connection.unclaimed", peer=connection.peer, container=connection.container_id
        )
        connection.turn_away(
            Refused(
                Reason.UNAUTHORIZED,
                f"Unauthorized access. No valid token was put to '$cbs' for {seconds:g} seconds.",
            )
        )

    # --- the end of claims ----------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        ends_ms = [claim.expires_at_ms for claim in self.claims.values() if claim.expires_at_ms is not None]
        if ends_ms:
            delay_ms = min(max(min(ends_ms) - self._services.clock.now_ms(), 0) + 1, TIMER_MS_MAX)
            self._expiry_timer = self._loop.call_later(delay_ms / 1000, self.expire)

    def clock_was_set(self) -> None:
        """Expire claims and restart the timer after a step of the wall clock, which decides when tokens
        expire."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self.expire()

    def expire(self) -> None:
        """End expired claims, and close the links that need them. Links to `$cbs` need no claim, so the
        client can put the next token."""
        self._expiry_timer = None
        now_ms = self._services.clock.now_ms()
        ended = [audience for audience, claim in self.claims.items() if not claim.lasts(now_ms)]
        self._end(ended, "ExpiredToken: the token of this link has expired. Please put another.")

    def rules_changed(self) -> None:
        """Update the claims after an entity's authorization rules have changed: a claim ends with its key,
        and loses the rights that its rule has lost."""
        in_force = self._connection.served.authorizer.in_force
        now = {audience: in_force(claim) for audience, claim in self.claims.items()}
        if any(now[audience] is not claim for audience, claim in self.claims.items()):
            ended = [audience for audience, claim in now.items() if claim is None]
            self.claims.update({audience: claim for audience, claim in now.items() if claim is not None})
            lost = "was removed or changed, or has lost a right"
            self._end(
                ended,
                f"The key of this link's token {lost}. Put another token."
                if set(now) != {""}
                else f"The key of this connection's login {lost}. Connect and log in again with another key.",
            )

    def _end(self, ended: list[str], why: str) -> None:
        """Drop the claims put for these audiences, and close the links that no other claim permits."""
        for audience in ended:
            del self.claims[audience]
        for link in self._connection.engine.links():
            if link.gone or link.context is None:
                continue
            served = cast(ServedLink, link.context)
            if served.rights and not self._may_stay(served, ended):
                self._connection.close_link(link, Refused(Reason.UNAUTHORIZED, why))
        self._watch()
        self.watch_unclaimed()
        if not self.claims:
            self._loop.call_later(STOPS_SENDING_WITHIN_S, self._restrict)

    def _restrict(self) -> None:
        """Without a claim, apply the same bounds as before the first claim."""
        if not self.claims:
            self._connection.engine.restrict()

    def _may_stay(self, link: ServedLink, ended: list[str]) -> bool:
        """Return whether a link is still permitted after the claims of these audiences have ended.

        When a claim ends, the links of the entity it was put for end too (AMQP contract 2.7), unless another
        claim was put for that entity or for a path above it. A token put for something else does not keep
        them, however far it reaches: .NET's tokens are all valid for the whole namespace, but .NET puts and
        renews them per entity. A link that has several entities needs a claim for each of them.
        """
        return all(self._is_permitted(path, link.rights, ended) for path in link.paths)

    def _is_permitted(self, path: str, rights: Sequence[str], ended: Sequence[str]) -> bool:
        own_has_ended = any(reaches(audience_path(audience), path) for audience in ended)
        return any(
            claim.covers_any(path, rights) and (not own_has_ended or reaches(audience_path(audience), path))
            for audience, claim in self.claims.items()
        )

    def connection_lost(self) -> None:
        """Forget the claims: the connection is gone."""
        self.claims.clear()
        for timer in (self._expiry_timer, self._unclaimed_timer):
            if timer is not None:
                timer.cancel()
        self._expiry_timer = self._unclaimed_timer = None
