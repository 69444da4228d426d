"""Shared access signatures: who may do what (AMQP contract 2.5, HTTP contract 1.1).

    SharedAccessSignature sr=<resource>&sig=<signature>&se=<unix seconds>&skn=<rule name>         in any order

The signature covers `sr` as it stands in the token, still encoded, and `se`: each SDK encodes differently, so nothing is
decoded and encoded again. Keys look like Base64 but are used as text. A rule is looked for on the entity that `sr` names,
on its parents, then on the namespace; a token is good for its resource and everything below it.

No text made here repeats a key, a signature or a token.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import unquote, unquote_plus

from broker.entities import AuthorizationRule
from broker.errors import Reason, Refused
from broker.frontend.addresses import audience_path

MANAGE, LISTEN, SEND = "Manage", "Listen", "Send"

_SCHEME = "sharedaccesssignature "
_TOKEN_CHARACTERS_MAX = 8_192
_SEGMENTS_MAX = 64


@dataclass(slots=True, frozen=True)
class Claim:
    """What a token, or a key name and key, permit."""

    path: str
    """Entity path, case folded; "" is the whole namespace."""
    rights: frozenset[str]
    expires_at_ms: int | None
    """Wall clock since the epoch; None for a key, which does not expire."""
    key_name: str
    of_namespace: bool = True
    """Whether the key is one of the namespace's rules; an entity's own key creates and lists no entities (HTTP contract 1.7)."""

    def lasts(self, now_ms: int) -> bool:
        """Whether it has not run out."""
        return self.expires_at_ms is None or self.expires_at_ms > now_ms

    def covers_path(self, path: str) -> bool:
        """Whether the claim reaches the entity path, in any case: it is the claim's own, or lies below it."""
        return reaches(self.path, path)

    def covers(self, path: str, right: str) -> bool:
        """Whether the claim gives the right on the entity path; "" is the namespace. Manage includes the other two."""
        return (right in self.rights or MANAGE in self.rights) and self.covers_path(path)

    def covers_any(self, path: str, rights: Iterable[str]) -> bool:
        """Whether the claim gives one of the rights on the entity path."""
        return any(self.covers(path, right) for right in rights)


class Authorizer:
    """Verifies tokens and keys against the rules in force."""

    def __init__(self, namespace_rules: Sequence[AuthorizationRule], entity_rules: Callable[[str], Sequence[AuthorizationRule]]) -> None:
        """`entity_rules` gives the rules of an entity path, in any case; none for an entity that does not exist."""
        self._namespace_rules = namespace_rules
        self._entity_rules = entity_rules

    def verify_token(self, text: str, now_ms: int, grace_ms: int = 0) -> Claim:
        """The claim of a SAS token. Raises Refused(UNAUTHORIZED).

        `grace_ms` is how long after its end the token is still taken: Python's administration client uses one for 60 s more.
        """
        resource, signature, expiry, key_name = _token_parts(text)
        path = audience_path(unquote_plus(resource))
        signed = f"{resource}\n{expiry}".encode()
        given = unquote(signature).encode()
        verified = next((found for found in self._rules(path, key_name) if _signed_by(found[0], signed, given)), None)
        if verified is None:
            raise _refused("InvalidSignature: The token has an invalid signature.")
        expires_at_ms = int(expiry) * 1000
        if expires_at_ms + grace_ms <= now_ms:
            raise _refused(f"ExpiredToken: The token expired at {expiry} (seconds since 1970), {(now_ms - expires_at_ms) // 1000} s ago.")
        rule, of_namespace = verified
        return Claim(path, rule.rights, expires_at_ms, key_name, of_namespace)

    def verify_key(self, key_name: str, key: str) -> Claim:
        """The claim of a rule of the namespace by its name and either of its keys (SASL PLAIN). Raises Refused(UNAUTHORIZED).

        An entity's rules cannot be meant: the login comes before any address, and rules of many entities may share a name. Their keys
        sign tokens, which name the entity.
        """
        for rule in self._namespace_rules:
            if rule.key_name == key_name and any(hmac.compare_digest(one.encode(), key.encode()) for one in _keys(rule)):
                return Claim("", rule.rights, None, key_name)
        raise _refused("InvalidSignature: Unknown key name or wrong key.")

    def _rules(self, path: str, key_name: str) -> Iterator[tuple[AuthorizationRule, bool]]:
        """Rules of that name, the nearest first, each with whether it is the namespace's."""
        while path:
            yield from ((rule, False) for rule in self._entity_rules(path) if rule.key_name == key_name)
            path = path.rpartition("/")[0]
        yield from ((rule, True) for rule in self._namespace_rules if rule.key_name == key_name)


def reaches(claimed: str, path: str) -> bool:
    """Whether an entity path, in any case, is a claimed one (case folded; "" is the whole namespace), or lies below it."""
    path = path.strip("/").casefold()
    return not claimed or path == claimed or path.startswith(claimed + "/")


def _token_parts(text: str) -> tuple[str, str, str, str]:
    """`sr`, `sig` and `se` as they stand in the token, and `skn` decoded."""
    if len(text) > _TOKEN_CHARACTERS_MAX:
        raise _refused(f"MalformedToken: The token has {len(text)} characters, at most {_TOKEN_CHARACTERS_MAX} are allowed.")
    if any("\ud800" <= character <= "\udfff" for character in text):  # a header that is no UTF-8, as Python HTTP stacks hand it over
        raise _refused("MalformedToken: The token is no UTF-8.")
    if text[: len(_SCHEME)].casefold() != _SCHEME:
        raise _refused("MalformedToken: Only SAS tokens are supported ('SharedAccessSignature sr=…'); JSON web tokens are not.")
    parts: dict[str, str] = {}
    for pair in text[len(_SCHEME) :].strip().split("&"):
        name, _, value = pair.partition("=")
        parts[name.strip().casefold()] = value
    missing = [name for name in ("sr", "sig", "se", "skn") if not parts.get(name)]
    if missing:
        raise _refused(f"MalformedToken: The token lacks {', '.join(missing)}.")
    expiry = parts["se"]
    if not (expiry.isascii() and expiry.isdigit() and len(expiry) <= 15):
        raise _refused("MalformedToken: The token's expiry (se) is no number of seconds.")
    if unquote_plus(parts["sr"]).count("/") > _SEGMENTS_MAX:
        raise _refused(f"MalformedToken: The token's resource (sr) has more than {_SEGMENTS_MAX} segments.")
    return parts["sr"], parts["sig"], expiry, unquote(parts["skn"])


def _signed_by(rule: AuthorizationRule, signed: bytes, given: bytes) -> bool:
    return any(hmac.compare_digest(_signature(key, signed), given) for key in _keys(rule))


def _keys(rule: AuthorizationRule) -> list[str]:
    return [key for key in (rule.primary_key, rule.secondary_key) if key]


def _signature(key: str, signed: bytes) -> bytes:
    return base64.b64encode(hmac.new(key.encode(), signed, hashlib.sha256).digest())


def _refused(description: str) -> Refused:
    return Refused(Reason.UNAUTHORIZED, description)
