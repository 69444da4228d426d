"""SAS tokens as each SDK makes them (HTTP contract 1.1, 1.2)."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import time
import urllib.parse

KEY_NAME, KEY = "RootManageSharedAccessKey", "SAS_KEY_VALUE"


def sas_token(
    resource: str,
    *,
    key_name: str = KEY_NAME,
    key: str = KEY,
    expires_at_s: int | None = None,
    lower_hex: bool = False,
) -> str:
    """A token for a resource URI. `lower_hex` escapes as the JavaScript and Go SDKs do."""
    encoded = urllib.parse.quote(resource, safe="")
    if lower_hex:
        encoded = re.sub("%..", lambda escape: escape.group().lower(), encoded)
    expiry = str(expires_at_s if expires_at_s is not None else int(time.time()) + 3600)
    digest = hmac.new(key.encode(), f"{encoded}\n{expiry}".encode(), hashlib.sha256).digest()
    signature = urllib.parse.quote(base64.b64encode(digest).decode(), safe="")
    return f"SharedAccessSignature sr={encoded}&sig={signature}&se={expiry}&skn={key_name}"
