"""Which names the HTTP port answers under, and which web pages may use it.

Any web page that a user opens can make the browser send requests to the broker, and a page's owner can point
a name at the broker's address (DNS rebinding). Two headers reveal such requests, and no page can change them:
`Host` is the site's name as the browser knows it, and `Origin` is the page's site. A page's own name cannot
be an IP address or a name without a dot, so the port always answers to those; other names must be in the
certificate or the settings. Pure: headers in, a refusal out. RFC 9110 7.2 and 7.4 (`Host`, 421), RFC 6454 7
(`Origin`).
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Sequence

from broker.http.refusals import HttpRefusal

_AUTHORITY = re.compile(r"(\[[0-9A-Za-z:.%_-]+\]|[0-9A-Za-z._-]+)(?::([0-9]{0,5}))?", re.ASCII)
"""Host and port in a `Host` header (RFC 3986 3.2.2), without a user name or characters that real host names
lack."""
_ORIGIN = re.compile(rf"([a-z][a-z0-9+.-]*)://{_AUTHORITY.pattern}", re.ASCII | re.IGNORECASE)
_PORTS = {"http": 80, "https": 443}
MISDIRECTED = 421


class Sites:
    """The names and origins that one HTTP port permits. A name may begin with `*.`, which stands for one
    label; `*` permits every name."""

    def __init__(self, names: Iterable[str], origins: Iterable[str]) -> None:
        self._names = frozenset(_plain(name) for name in names)
        self._origins = frozenset(site for site in map(_site_of, origins) if site is not None)

    def check(
        self,
        *,
        scheme: str,
        target: str,
        http_1_0: bool,
        hosts: Sequence[str],
        origins: Sequence[str],
        under_any_name: bool,
    ) -> None:
        """Raise HttpRefusal for a request that is not for this site, or comes from another site's page.

        `scheme` is http or https, `target` is the request target as received, and `hosts` and `origins` are
        all values of the two headers. `under_any_name` says that the answer is the same for everybody, so the
        name does not matter (`/health`).
        """
        if not target.startswith("/"):
            raise HttpRefusal(400, 0, "The request target must be a path: this is not a proxy.")
        site = None
        if hosts or not http_1_0:
            host, port = self._check_host(hosts, under_any_name)
            site = (scheme, host, _PORTS[scheme] if port is None else port)
        for origin in origins:
            theirs = _site_of(origin)
            if theirs is None or (theirs != site and theirs not in self._origins):
                raise HttpRefusal(
                    403,
                    0,
                    "The Origin header names another site, whose web pages may not use this broker. To "
                    "permit them, add the origin to "
                    "PARTIBUS_ORIGINS.",
                )

    def _check_host(self, hosts: Sequence[str], under_any_name: bool) -> tuple[str, int | None]:
        """The host and port that the request is for. Raises HttpRefusal."""
        if len(hosts) != 1:
            raise HttpRefusal(400, 0, f"A request needs exactly one Host header; this one has {len(hosts)}.")
        own = _AUTHORITY.fullmatch(hosts[0].strip())
        if own is None or int(own[2] or 0) > 65_535:
            raise HttpRefusal(400, 0, "The Host header is not a name or an address with an optional port.")
        name = _plain(own[1])
        if not under_any_name and not self._answers_to(name):
            raise HttpRefusal(
                MISDIRECTED,
                0,
                f"This broker does not answer under the name '{own[1]}'. Use its IP address, a name "
                "without a dot or a name in its "
                "certificate, or add the name to PARTIBUS_HOSTNAMES.",
            )
        return name, int(own[2]) if own[2] else None

    def _answers_to(self, name: str) -> bool:
        if (
            "." not in name
            or name in self._names
            or name.endswith(".localhost")
            or _is_address(name)
            or "*" in self._names
        ):
            return True
        return f"*.{name.partition('.')[2]}" in self._names


def _plain(host: str) -> str:
    """A host in the form used for comparison: lower case, without brackets and without the final dot of the
    root."""
    return host.strip().casefold().removeprefix("[").removesuffix("]").removesuffix(".")


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def _site_of(origin: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of an origin; None for `null` and anything that is not an origin."""
    match = _ORIGIN.fullmatch(origin.strip())
    if match is None:
        return None
    scheme = match[1].lower()
    port = int(match[3]) if match[3] else _PORTS.get(scheme)
    return (scheme, _plain(match[2]), port) if port is not None else None
