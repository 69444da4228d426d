"""Tokens for `$cbs`: the one that the user gave, or new ones that the key of a connection string signs (AMQP
contract 2.5).

A connection string may have the key of a single entity. Such a key signs tokens for its entity; the name and
the key alone would not say which entity it belongs to, so they are no login.
"""

from __future__ import annotations

import hashlib
import hmac
import math
import time
from base64 import b64encode
from urllib.parse import quote

from pyspark_partibus.endpoint import Endpoint

LIFETIME_S = 7 * 24 * 3600
"""How long a token that we have signed is valid: by the broker's clock, so by days less if ours is behind. It
goes to the broker only, as the key itself would."""
RENEWED_AFTER_S = 12 * 3600
"""Leaves days for a request or a range that takes long, and for a machine that was suspended."""


def has_tokens(endpoint: Endpoint) -> bool:
    """Whether rights come from tokens, one for each entity, and not from the login."""
    return endpoint.token is not None or endpoint.signs_tokens


def audience_of(endpoint: Endpoint, address: str) -> str:
    """What a token for an entity or subqueue is about."""
    return f"sb://{endpoint.host}/{address}"


def token_for(endpoint: Endpoint, address: str) -> tuple[str, float]:
    """A token for an entity or subqueue, and after how many seconds there should be a new one."""
    if endpoint.token is not None:
        return endpoint.token, math.inf
    resource = quote(audience_of(endpoint, address), safe="")
    expiry = int(time.time()) + LIFETIME_S
    signed = hmac.new((endpoint.password or "").encode(), f"{resource}\n{expiry}".encode(), hashlib.sha256)
    signature = quote(b64encode(signed.digest()), safe="")
    name = quote(endpoint.username or "", safe="")
    return f"SharedAccessSignature sr={resource}&sig={signature}&se={expiry}&skn={name}", RENEWED_AFTER_S
