"""What the client of a connection may do, and until when: its tokens, and what ends with them.

A client logs in with SASL PLAIN or puts tokens to `$cbs` (AMQP contract 2). When a token expires, or the key
behind it is removed or changed, the links that no other token permits are closed. A connection that presents
no valid claim in time is closed. Runs in the event loop; nothing here waits.
"""

from __future__ import annotations

import asyncio
from typing import cast

import structlog

from broker.access.addresses import audience_path
from broker.access.sas import Claim, reaches
from broker.base.errors import Reason, Refused
from broker.frontend.host import Host, ServedLink

log = structlog.get_logger("connection")

NO_CREDENTIALS = (
    " This connection has presented no valid credentials: put a token to '$cbs', or log in with SASL "
    "PLAIN, with the name of a key of the"
    " namespace as user and the key as password."
)
TOKENS_MAX = 1_000
STOPS_SENDING_WITHIN_S = 2.0
"""How long messages may still come in that a client had sent before it heard that its links are closed."""
TIMER_MS_MAX = 86_400_000
"""Tokens may be valid for years, and the event loop's timers for days only."""


class Tokens:
    """The claims of one connection. Owned by it."""

    __slots__ = ("_expiry_timer", "_host", "_loop", "_services", "_unclaimed_timer", "claims")

    def __init__(self, host: Host) -> None:
        self.claims: dict[str, Claim] = {}
        """By the audience they were put for; "" is who logged in with SASL PLAIN."""
        self._host, self._services = host, host.services
        self._loop = asyncio.get_running_loop()
        self._expiry_timer: asyncio.TimerHandle | None = None
        self._unclaimed_timer: asyncio.TimerHandle | None = None

    def log_in(self, user: str, password: str) -> bool:
        """Whether a client with this name and key (SASL PLAIN) may log in; if so, it has the key's rights."""
        try:
            self.claims[""] = self._services.authorizer.verify_key(user, password)
        except Refused:
            return False
        return True

    def put(self, audience: str, claim: Claim) -> None:
        """A token was put for an audience; it takes the place of the one before (AMQP contract 2.7)."""
        if audience not in self.claims and len(self.claims) >= TOKENS_MAX:
            raise Refused(Reason.QUOTA_EXCEEDED, f"{TOKENS_MAX} tokens are the maximum for a connection.")
        self.claims[audience] = claim
        self._host.engine.lift_restriction()
        if self._unclaimed_timer is not None:
            self._unclaimed_timer.cancel()
            self._unclaimed_timer = None
        self._watch()

    def authorize(self, path: str, *rights: str) -> None:
        """Raises Refused(UNAUTHORIZED) unless a claim that has not run out permits one of the rights."""
        now_ms = self._services.clock.now_ms()
        for claim in self.claims.values():
            if claim.lasts(now_ms) and claim.covers_any(path, rights):
                return
        wanted = "' or '".join(rights)
        raise Refused(
            Reason.UNAUTHORIZED,
            f"Unauthorized access. '{wanted}' claim(s) are required to perform this operation. Resource: 'sb://"
            f"{self._services.namespace.name}/{path}'.{'' if self.claims else NO_CREDENTIALS}",
        )

    # --- a connection without a claim -----------------------------------------------------------------------

    def watch_unclaimed(self) -> None:
        """Close the connection if it presents no valid claim in time: it takes memory (AMQP contract 1.2)."""
        timeout_ms = self._services.settings.unclaimed_timeout_ms
        if not self.claims and timeout_ms and self._unclaimed_timer is None:
            self._unclaimed_timer = self._loop.call_later(timeout_ms / 1000, self._stayed_unclaimed)

    def _stayed_unclaimed(self) -> None:
        self._unclaimed_timer = None
        seconds = self._services.settings.unclaimed_timeout_ms / 1000
        host = self._host
        self._services.sparing.info(log, "connection.unclaimed", peer=host.peer, container=host.container_id)
        host.close(
            Refused(
                Reason.UNAUTHORIZED,
                f"Unauthorized access. No valid token was put to '$cbs' for {seconds:g} seconds.",
            )
        )

    # --- claims that end ------------------------------------------------------------------------------------

    def _watch(self) -> None:
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self._expiry_timer = None
        ends_ms = [claim.expires_at_ms for claim in self.claims.values() if claim.expires_at_ms is not None]
        if ends_ms:
            delay_ms = min(max(min(ends_ms) - self._services.clock.now_ms(), 0) + 1, TIMER_MS_MAX)
            self._expiry_timer = self._loop.call_later(delay_ms / 1000, self.expire)

    def clock_was_set(self) -> None:
        """The wall clock has stepped, and tokens expire by it: end those that have expired, and set the timer
        again."""
        if self._expiry_timer is not None:
            self._expiry_timer.cancel()
            self.expire()

    def expire(self) -> None:
        """End the claims that have expired, and close the links that need them; `$cbs`, where the next token
        is put, needs none."""
        self._expiry_timer = None
        now_ms = self._services.clock.now_ms()
        ended = [audience for audience, claim in self.claims.items() if not claim.lasts(now_ms)]
        self._end(ended, "ExpiredToken: the token of this link has expired. Please put another.")

    def rules_changed(self) -> None:
        """Authorization rules of an entity were changed or deleted: claims end with their keys, and lose what
        their rules have lost."""
        in_force = self._services.authorizer.in_force
        now = {audience: in_force(claim) for audience, claim in self.claims.items()}
        if any(now[audience] is not claim for audience, claim in self.claims.items()):
            ended = [audience for audience, claim in now.items() if claim is None]
            self.claims.update({audience: claim for audience, claim in now.items() if claim is not None})
            self._end(
                ended,
                (
                    "The key of this link's token was removed or changed, or has lost a right. Put another "
                    "token."
                ),
            )

    def _end(self, ended: list[str], why: str) -> None:
        """Forget the claims put for these audiences, and close the links that no other claim permits."""
        for audience in ended:
            del self.claims[audience]
        for link in self._host.engine.links():
            if link.gone or link.context is None:
                continue
            served = cast(ServedLink, link.context)
            if served.rights and not self._may_stay(served, ended):
                self._host.close_link(link, Refused(Reason.UNAUTHORIZED, why))
        self._watch()
        self.watch_unclaimed()
        if not self.claims:
            self._loop.call_later(STOPS_SENDING_WITHIN_S, self._restrict)

    def _restrict(self) -> None:
        """Without a claim, the bounds hold again that held before the first one."""
        if not self.claims:
            self._host.engine.restrict()

    def _may_stay(self, link: ServedLink, ended: list[str]) -> bool:
        """Whether a link is still permitted after the claims of these audiences have ended.

        The end of a claim ends the links of the entity that it was put for (AMQP contract 2.7), unless
        another one was put for that entity, or for what it belongs to. A token that was put for something
        else does not keep them, however far it reaches: those of .NET are all good for the whole namespace,
        and put and renewed entity by entity.
        """
        own_has_ended = any(reaches(audience_path(audience), link.path) for audience in ended)
        return any(
            claim.covers_any(link.path, link.rights)
            and (not own_has_ended or reaches(audience_path(audience), link.path))
            for audience, claim in self.claims.items()
        )

    def connection_lost(self) -> None:
        """The connection is gone, and nothing is left to watch."""
        for timer in (self._expiry_timer, self._unclaimed_timer):
            if timer is not None:
                timer.cancel()
        self._expiry_timer = self._unclaimed_timer = None
