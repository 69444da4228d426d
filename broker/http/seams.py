"""What the HTTP port needs of token checking. `broker.access.sas.Authorizer` implements these protocols."""

from __future__ import annotations

from typing import Protocol


class Claim(Protocol):
    """What a verified token permits."""

    @property
    def of_namespace(self) -> bool:
        """Whether the token was signed with a key of the namespace, not of an entity."""

    @property
    def expires_at_ms(self) -> int | None:
        """When it ends, in wall time; None if it does not."""

    def covers(self, path: str, right: str) -> bool:
        """Whether the claim gives the right ("Manage", "Send", "Listen") on the entity path; "" is the
        namespace."""


class TokenVerifier(Protocol):
    """Checks SAS tokens; raises `Refused(UNAUTHORIZED)`."""

    def verify_token(self, text: str, now_ms: int, grace_ms: int) -> Claim:
        """Verify a token. `text` is the header as received; `grace_ms` is how long a token is still accepted
        after it expires."""
