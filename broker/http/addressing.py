"""Paths of the administration API (HTTP contract 2.1, 2.10): what a request's path names, which page of a
list it wants, and the URLs in answers."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass

from aiohttp import web

from broker.http.refusals import HttpRefusal

API_VERSION_DEFAULT = "2021-05"
PAGE_DEFAULT, PAGE_MAX = 100, 1_000


@dataclass(slots=True, frozen=True)
class ManagedPath:
    """The entity that a path names, and what it addresses below that entity."""

    entity: str
    below: tuple[str, ...] = ()
    """The segments from `subscriptions` on; empty if the path ends at the entity."""


def read_path(raw_path: str) -> ManagedPath:
    """Split the raw path, then decode its segments: Python and Java escape the slashes in a name, other
    clients do not."""
    segments = [urllib.parse.unquote(segment) for segment in raw_path.split("/")]
    path = "/".join(segments).strip("/").split("/")
    for place, segment in enumerate(path[1:], start=1):
        if segment.casefold() == "subscriptions":
            return ManagedPath("/".join(path[:place]), tuple(path[place:]))
    return ManagedPath("/".join(path))


def url_of(request: web.Request, path: str) -> str:
    """The absolute URL under the host name that the client used. JavaScript takes an entity's name from
    it."""
    start, end = url_parts(request)
    return f"{start}{urllib.parse.quote(path, safe='/$~')}{end}"


def url_parts(request: web.Request) -> tuple[str, str]:
    """The parts of a URL before and after its path."""
    version = urllib.parse.quote(request.query.get("api-version", API_VERSION_DEFAULT), safe="")
    return f"{request.scheme}://{request.host}/", f"?api-version={version}"


def page_of(request: web.Request) -> tuple[int, int]:
    """How many entries of a list to skip, and how many to show."""
    return _number(request, "$skip", 0), min(_number(request, "$top", PAGE_DEFAULT), PAGE_MAX)


def next_url_of(request: web.Request, path: str, skip: int, count: int, total: int) -> str | None:
    """The URL of the next page of a list; None on the last page."""
    return (
        f"{url_of(request, path)}&%24skip={skip + count}&%24top={count}"
        if count and skip + count < total
        else None
    )


def _number(request: web.Request, name: str, default: int) -> int:
    text = request.query.get(name, "")
    if not text:
        return default
    if not text.isdecimal() or len(text) > 9:
        raise HttpRefusal(400, 40000, f"The value of {name} is not a whole number.")
    return int(text)
