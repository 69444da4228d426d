"""What the HTTP port asks of those who check tokens. `broker.access.sas.Authorizer` fits by shape."""

from __future__ import annotations

from typing import Protocol


class Claim(Protocol):
    """What a verified token permits."""

    @property
    def of_namespace(self) -> bool:
        """Whether it was signed with a key of the namespace, not with one of an entity."""

    def covers(self, path: str, right: str) -> bool:
        """Whether it gives the right ("Manage", "Send", "Listen") on the entity path; "" is the namespace."""


class TokenVerifier(Protocol):
    """Checks SAS tokens; raises `Refused(UNAUTHORIZED)`."""

    def verify_token(self, text: str, now_ms: int, grace_ms: int) -> Claim:
        """`text` as it stands in the header; `grace_ms` is how long after its end a token is still taken."""
