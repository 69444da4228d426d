"""Who may do what over HTTP (HTTP contract 1.4, 1.7). Rights are checked before existence, so that names
cannot be probed without them."""

from __future__ import annotations

import math

from aiohttp import web

from broker.base.clock import Clock
from broker.entities.descriptions import key_of
from broker.http.refusals import HttpRefusal, only_reads
from broker.http.seams import Claim, TokenVerifier
from broker.namespace.namespace import Namespace

MANAGE, LISTEN = "Manage", "Listen"
USE = "Send", "Listen"
"""The rights to use an entity's messages. `Manage` includes both."""
READ, WRITE, DELETE = "EntityRead", "EntityWrite", "EntityDelete"
"""What an operation does, in the words of refusals."""


class Rights:
    """Checks the claims of requests. One per namespace."""

    def __init__(self, namespace: Namespace, tokens: TokenVerifier, clock: Clock, grace_ms: int) -> None:
        """`grace_ms`: how long a token is still accepted after it expires."""
        self._namespace, self._tokens, self._clock, self._grace_ms = namespace, tokens, clock, grace_ms

    def authenticate(self, request: web.Request) -> Claim:
        """What the token of a request permits. Raises HttpRefusal (401) if there is none, or it is not
        valid."""
        header = request.headers.get("Authorization")
        if not header:
            raise HttpRefusal(401, 40102, "MissingToken: The authorization header was not found.")
        return self._verified(header)

    def require_namespace(self, request: web.Request, claim: Claim, path: str) -> None:
        """Require a key of the namespace, and a method that only reads."""
        self.require(claim, path, READ, of_namespace=True)
        only_reads(request)

    def require(self, claim: Claim, path: str, action: str, *, of_namespace: bool = False) -> None:
        """Require Manage on the path, before anything is looked up, so that names cannot be probed.

        `of_namespace` requires a key of the namespace. The token's own scope may still be as narrow as the
        path: JavaScript signs each URL separately.
        """
        if claim.covers(path, MANAGE) and (claim.of_namespace or not of_namespace):
            return
        if action == READ:
            raise HttpRefusal(401, 40100, f"Manage,{action} claims required for this operation.")
        raise HttpRefusal(401, 40100, f"Authorization failed for specified action: Manage,{action}.")

    def require_right(self, claim: Claim, path: str, right: str) -> None:
        """Require Send or Listen on the path of messages, before anything is looked up."""
        if not claim.covers(path, right):
            raise HttpRefusal(
                401, 40100, f"Unauthorized access. '{right}' claim(s) are required to perform this operation."
            )

    def lasts_s(self, claim: Claim) -> float:
        """How long the claim is accepted from now on."""
        if claim.expires_at_ms is None:
            return math.inf
        return max(claim.expires_at_ms + self._grace_ms - self._clock.now_ms(), 0) / 1_000

    def check_forwarding(
        self, request: web.Request, claim: Claim, name: str, forwarding: tuple[str | None, str | None]
    ) -> None:
        """Require Manage on each forwarding destination, by the same token or by a second one (HTTP contract
        1.4)."""
        for target, header in (
            (forwarding[0], "ServiceBusSupplementaryAuthorization"),
            (forwarding[1], "ServiceBusDlqSupplementaryAuthorization"),
        ):
            if target is None:
                continue
            if not claim.covers(target, MANAGE) and not self._covers(request.headers.get(header), target):
                raise HttpRefusal(
                    401,
                    40100,
                    f"Manage on the forwarding destination '{target}' is required, in the header {header}.",
                )
            is_itself = key_of(target) == key_of(name)  # which the namespace refuses
            if self._namespace.describe(target) is None and not is_itself:
                raise HttpRefusal(400, 40400, "The auto forwarding destination entity does not exist.")

    def _covers(self, token: str | None, target: str) -> bool:
        return self._verified(token).covers(target, MANAGE) if token else False

    def _verified(self, token: str) -> Claim:
        return self._tokens.verify_token(token, self._clock.now_ms(), self._grace_ms)
