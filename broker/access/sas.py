"""Shared access signatures: who may do what (AMQP contract 2.5, HTTP contract 1.1).

    SharedAccessSignature sr=<resource>&sig=<signature>&se=<unix seconds>&skn=<rule name>         in any order

The signature covers `se`, and `sr` as it stands in the token, still encoded: each SDK encodes differently, so
nothing is decoded and encoded again. Keys look like Base64 but are used as text. The rule is looked up on the
entity that `sr` names, then on its parents, then on the namespace. A token is valid for its resource and
everything below it.

No text made here repeats a key, a signature or a token.
"""

from __future__ import annotations

import base64
import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from urllib.parse import unquote, unquote_plus

from broker.access.addresses import audience_host, audience_path
from broker.base.errors import Reason, Refused
from broker.entities.descriptions import AuthorizationRule

MANAGE, LISTEN, SEND = "Manage", "Listen", "Send"

EXPIRY_S_MAX = 253_402_300_799
"""The last second of the year 9999, the latest that the clients' timestamps can hold. Later expiries count as
this one."""

VERIFIED_MAX = 256
"""How many verified tokens are kept."""
VERIFIED_CHARACTERS_MAX = 1_024
"""Longer tokens are verified anew each time. The clients' have some 200 characters."""

_SCHEME = "sharedaccesssignature "
_TOKEN_CHARACTERS_MAX = 8_192
_SEGMENTS_MAX = 64


@dataclass(slots=True, frozen=True)
class Claim:
    """What a token permits, or a key name with its key."""

    path: str
    """Entity path, case folded; "" is the whole namespace."""
    rights: frozenset[str]
    expires_at_ms: int | None
    """Wall time in ms since the epoch; None for a key, which does not expire."""
    key_name: str
    owner: str = ""
    """The entity (case folded) whose rules contain the key; "" for the namespace."""
    key: str = field(default="", repr=False)
    """The key that signed the token, or that the client logged in with."""

    @property
    def of_namespace(self) -> bool:
        """Whether the key belongs to the namespace. An entity's own key cannot create or list entities (HTTP
        contract 1.7)."""
        return not self.owner

    def lasts(self, now_ms: int) -> bool:
        """Whether the claim has not expired."""
        return self.expires_at_ms is None or self.expires_at_ms > now_ms

    def covers_path(self, path: str) -> bool:
        """Whether the claim reaches the entity path, given in any case: the claim's own path, or one below
        it."""
        return reaches(self.path, path)

    def covers(self, path: str, right: str) -> bool:
        """Whether the claim gives the right on the entity path; "" is the namespace. Manage includes the
        other two rights."""
        return (right in self.rights or MANAGE in self.rights) and self.covers_path(path)

    def covers_any(self, path: str, rights: Iterable[str]) -> bool:
        """Whether the claim gives one of the rights on the entity path."""
        return any(self.covers(path, right) for right in rights)


@dataclass(slots=True, frozen=True)
class _Token:
    """The parts of a token, before its signature is verified."""

    audience: str
    path: str
    """Entity path, case folded; "" is the whole namespace."""
    key_name: str
    expiry: str
    expires_at_ms: int
    signed: bytes
    """What its signature covers."""
    signature: bytes = field(repr=False)

    def is_signed_with(self, key: str) -> bool:
        """Whether the token was signed with this key."""
        return hmac.compare_digest(_signature(key, self.signed), self.signature)


class Authorizer:
    """Verifies tokens and keys against the rules in force."""

    def __init__(
        self,
        namespace_rules: Sequence[AuthorizationRule],
        entity_rules: Callable[[str], Sequence[AuthorizationRule]],
        is_own_host: Callable[[str], bool] = lambda host: True,
    ) -> None:
        """`entity_rules` gives the rules for an entity path, in any case; none if the entity does not exist.
        `is_own_host` says whether a host name means this namespace."""
        self.namespace_rules = namespace_rules
        """Those in force now. Whoever replaces them tells the connections."""
        self._entity_rules = entity_rules
        self.is_own_host = is_own_host
        """Set once all namespaces are known."""
        self._verified: dict[str, tuple[_Token, str]] = {}
        """Tokens that were verified, and the key that has signed each. A client sends the same token with
        each request: it need not be read again, and its signature follows from the key. Rules and times are
        checked each time."""

    def verify_token(self, text: str, now_ms: int, grace_ms: int = 0) -> Claim:
        """Verify a SAS token and return its claim. Raises Refused(UNAUTHORIZED).

        `grace_ms` is how long a token is still accepted after it expires: Python's administration client uses
        one for 60 s longer.
        """
        known = self._verified.get(text)
        token, known_key = (_parse(text), None) if known is None else known
        self.check_audience(token.audience)
        claim = next(
            (
                Claim(token.path, rule.rights, token.expires_at_ms, token.key_name, owner, key)
                for owner, rule in self._rules(token.path, token.key_name)
                for key in _keys(rule)
                if key == known_key or token.is_signed_with(key)
            ),
            None,
        )
        if claim is None:
            raise _refused("InvalidSignature: The token has an invalid signature.")
        if token.expires_at_ms + grace_ms <= now_ms:
            raise _refused(
                f"ExpiredToken: The token expired at {token.expiry} (seconds since 1970), "
                f"{(now_ms - token.expires_at_ms) // 1000} s ago."
            )
        if claim.key != known_key and len(text) <= VERIFIED_CHARACTERS_MAX:
            if len(self._verified) >= VERIFIED_MAX:
                self._verified.clear()
            self._verified[text] = token, claim.key
        return claim

    def check_audience(self, audience: str) -> None:
        """Check that a token's audience, or a SAS token's resource, is in this namespace, whatever its path.
        Raises Refused(UNAUTHORIZED)."""
        if not self.is_own_host(audience_host(audience)):
            raise _refused(f"InvalidAudience: '{audience:.300}' is not in this namespace.")

    def verify_key(self, key_name: str, key: str) -> Claim:
        """Verify the name of a namespace rule and one of its keys (SASL PLAIN). Raises Refused(UNAUTHORIZED).

        Rules of entities are not considered: the login comes before any address, and rules of several
        entities may share a name. An entity's keys sign tokens, which name the entity.
        """
        for rule in self.namespace_rules:
            if rule.key_name == key_name and any(
                hmac.compare_digest(one.encode(), key.encode()) for one in _keys(rule)
            ):
                return Claim("", rule.rights, None, key_name, key=key)
        raise _refused("InvalidSignature: Unknown key name or wrong key.")

    def in_force(self, claim: Claim) -> Claim | None:
        """What a claim still permits under the current rules: fewer rights if its rule lost some, None if it
        lost them all.

        The result is also None once the key was removed or changed, or its entity was deleted, even if the
        entity was created again without the key. Rights that the rule has gained do not count until the
        client puts a new token.
        """
        rules = self._entity_rules(claim.owner) if claim.owner else self.namespace_rules
        for rule in rules:
            if (
                rule.key_name == claim.key_name
                and claim.key in _keys(rule)
                and (rights := claim.rights & rule.rights)
            ):
                return claim if rights == claim.rights else replace(claim, rights=rights)
        return None

    def _rules(self, path: str, key_name: str) -> Iterator[tuple[str, AuthorizationRule]]:
        """Rules of that name, the nearest first, each with the entity that has it; "" is the namespace."""
        while path:
            yield from ((path, rule) for rule in self._entity_rules(path) if rule.key_name == key_name)
            path = path.rpartition("/")[0]
        yield from (("", rule) for rule in self.namespace_rules if rule.key_name == key_name)


def key_name_of(token: object) -> str | None:
    """The name of the key that a token claims as its signer, for log lines; None if it names none."""
    try:
        return _token_parts(token)[3] if isinstance(token, str) else None
    except Refused:
        return None


def reaches(claimed: str, path: str) -> bool:
    """Whether a claim on `claimed` (case folded; "" is the whole namespace) reaches `path`, given in any
    case: the same path, or one below it."""
    path = path.strip("/").casefold()
    return not claimed or path == claimed or path.startswith(claimed + "/")


def _token_parts(text: str) -> tuple[str, str, str, str]:
    """`sr`, `sig` and `se` exactly as in the token, and `skn` decoded."""
    if len(text) > _TOKEN_CHARACTERS_MAX:
        raise _refused(
            f"MalformedToken: The token has {len(text)} characters; the limit is {_TOKEN_CHARACTERS_MAX}."
        )
    if not text.isascii() and any(
        "\ud800" <= character <= "\udfff" for character in text
    ):  # Python HTTP stacks decode a header that is not UTF-8 to surrogates
        raise _refused("MalformedToken: The token is no UTF-8.")
    if text[: len(_SCHEME)].casefold() != _SCHEME:
        raise _refused(
            "MalformedToken: Only SAS tokens are supported ('SharedAccessSignature sr=…'); JSON web "
            "tokens are not."
        )
    parts: dict[str, str] = {}
    for pair in text[len(_SCHEME) :].strip().split("&"):
        name, _, value = pair.partition("=")
        parts[name.strip().casefold()] = value
    missing = [name for name in ("sr", "sig", "se", "skn") if not parts.get(name)]
    if missing:
        raise _refused(f"MalformedToken: The token lacks {', '.join(missing)}.")
    expiry = parts["se"]
    if not (expiry.isascii() and expiry.isdigit()):
        raise _refused("MalformedToken: The token's expiry (se) is not a number of seconds.")
    if unquote_plus(parts["sr"]).count("/") > _SEGMENTS_MAX:
        raise _refused(f"MalformedToken: The token's resource (sr) has more than {_SEGMENTS_MAX} segments.")
    return parts["sr"], parts["sig"], expiry, unquote(parts["skn"])


def _parse(text: str) -> _Token:
    """Read a token. Raises Refused(UNAUTHORIZED)."""
    resource, signature, expiry, key_name = _token_parts(text)
    audience = unquote_plus(resource)
    return _Token(
        audience,
        audience_path(audience),
        key_name,
        expiry,
        _expires_at_ms(expiry),
        f"{resource}\n{expiry}".encode(),
        unquote(signature).encode(),
    )


def _expires_at_ms(expiry: str) -> int:
    """A token's `se` in milliseconds since the epoch, clamped to what a timestamp can hold, so that
    ready-made long-lived tokens work."""
    digits = expiry.lstrip("0")
    return (
        EXPIRY_S_MAX if len(digits) > len(str(EXPIRY_S_MAX)) else min(int(digits or "0"), EXPIRY_S_MAX)
    ) * 1000


def _keys(rule: AuthorizationRule) -> list[str]:
    return [key for key in (rule.primary_key, rule.secondary_key) if key]


def _signature(key: str, signed: bytes) -> bytes:
    return base64.b64encode(hmac.digest(key.encode(), signed, "sha256"))


def _refused(description: str) -> Refused:
    return Refused(Reason.UNAUTHORIZED, description)
