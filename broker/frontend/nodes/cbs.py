"""The `$cbs` node, to which clients put the tokens that say what they may do (AMQP contract 2).

The broker recognises a token by its text, not by its announced type: the Python SDK says `jwt` even for a SAS
token. The expiry is always the token's own, never the request's.
"""

from __future__ import annotations

import structlog

from broker.access.addresses import audience_path
from broker.access.sas import key_name_of
from broker.base.errors import Reason, Refused
from broker.frontend.connection_view import ConnectionView
from broker.frontend.nodes.request_node import Request, Response
from broker.refusal_wording import status_of
from protocol.codec import Int, Symbol

log = structlog.get_logger("cbs")

AUDIENCE_CHARACTERS_MAX = 2_048
"""A host name has at most 253 characters and an entity's path 260; even the encoded path of a subscription's
dead letters is far shorter than this."""


class CbsNode:
    """Serves the put-token requests of one connection."""

    request_bytes_max = 64 * 1024
    request_values_max = 256
    serves_transactions = False

    def __init__(self, connection: ConnectionView) -> None:
        self._connection = connection

    def is_page(self, request: Request) -> bool:
        """Always False: its responses are small."""
        return False

    async def respond(self, request: Request) -> Response:
        """Answer put-token with status 202, or with a refusal. Keys have dashes, and the status is an int
        (AMQP contract 0.4.2)."""
        try:
            self._put_token(request)
        except Refused as why:
            status, condition = status_of(why.reason)
            audience = request.properties.get("name")
            self._connection.services.sparing.info(
                log,
                "cbs.refused",
                peer=self._connection.peer,
                audience=audience if isinstance(audience, str) else None,
                key=key_name_of(request.body),
                reason=why.description,
            )
            return Response(
                {
                    "status-code": Int(status),
                    "status-description": why.description,
                    "error-condition": Symbol(condition),
                },
            )
        return Response({"status-code": Int(202), "status-description": "Accepted"})

    def _put_token(self, request: Request) -> None:
        operation = request.properties.get("operation")
        if operation != "put-token":
            raise Refused(
                Reason.NOT_IMPLEMENTED, f"'{operation!s:.80}' is not an operation of $cbs; put-token is."
            )
        audience, token = request.properties.get("name"), request.body
        if not isinstance(audience, str) or not isinstance(token, str):
            raise Refused(
                Reason.ARGUMENT,
                "put-token needs the application property 'name' and the token as an amqp-value string.",
            )
        if len(audience) > AUDIENCE_CHARACTERS_MAX:
            raise Refused(
                Reason.ARGUMENT,
                (
                    f"The audience in 'name' has {len(audience)} characters; {AUDIENCE_CHARACTERS_MAX} are "
                    "the maximum."
                ),
            )
        authorizer = self._connection.served.authorizer
        authorizer.check_audience(audience)
        claim = authorizer.verify_token(token, self._connection.services.clock.now_ms())
        if not claim.covers_path(audience_path(audience)):
            raise Refused(
                Reason.UNAUTHORIZED,
                f"InvalidAudience: the token is for '{claim.path}', not for '{audience}'.",
            )
        self._connection.put_claim(audience, claim)
