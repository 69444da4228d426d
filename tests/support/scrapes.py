"""What a broker shows of itself to anybody over HTTP: metrics and health. Looking opens no partition."""

from __future__ import annotations

import json
import re
import urllib.request
from typing import Any

from tests.support.broker_process import Addresses


def seen(addresses: Addresses, path: str, within_s: float) -> str:
    """The text at `/` and this path."""
    with urllib.request.urlopen(f"{addresses.http_url}/{path}", timeout=within_s) as answer:
        text: str = answer.read().decode()
    return text


def metrics(addresses: Addresses, within_s: float) -> str:
    """All metrics, as Prometheus reads them."""
    return seen(addresses, "metrics", within_s)


def health(addresses: Addresses, within_s: float) -> dict[str, Any]:
    """The document at `/health`."""
    found: dict[str, Any] = json.loads(seen(addresses, "health", within_s))
    return found


def by_entity(text: str, name: str) -> dict[str, int]:
    """The values of `partibus_{name}` in these metrics, by the name of the entity. Those that are not known
    yet, as after a crash, are missing."""
    found = re.findall(rf'^partibus_{name}{{entity="([^"]+)"}} (\d+)\.0$', text, re.M)
    return {entity: int(value) for entity, value in found}
