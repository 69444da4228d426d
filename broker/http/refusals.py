"""Refusals over HTTP: what a handler raises, and how it is answered (HTTP contract 2.9).

`refusal_wording.py` gives the status of a `Refused`. Refusals that only HTTP has (for a path, a method, a
missing header) are an `HttpRefusal` with its status.
"""

from __future__ import annotations

import contextlib
import datetime
import uuid
from collections.abc import Iterator, Mapping

from aiohttp import web

from broker.base.errors import Reason, Refused
from broker.http.atom import ERROR_TYPE, write_error
from broker.namespace.entity import Entity
from broker.namespace.namespace import Namespace
from broker.refusal_wording import http_status_of


class HttpRefusal(Exception):
    """A request that is not carried out. `sub_code` is as in HTTP contract 2.9; 0 for none."""

    def __init__(
        self, status: int, sub_code: int, detail: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.sub_code, self.detail = status, sub_code, detail
        self.headers = dict(headers or {})

    def response(self, path: str, namespace: str, now_ms: int) -> web.Response:
        """The error in the form that clients parse. .NET looks for `SubCode=` with digits and a full stop."""
        moment = datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC)
        code = f"SubCode={self.sub_code}. " if self.sub_code else ""
        detail = (
            f"{code}{self.detail} TrackingId:{uuid.uuid4()}_G0, SystemTracker:{namespace}:{path}, "
            f"Timestamp:{moment:%Y-%m-%dT%H:%M:%S}"
        )
        return web.Response(
            status=self.status,
            body=write_error(self.status, detail),
            headers={**self.headers, "Content-Type": ERROR_TYPE},
        )


def not_allowed(request: web.Request, allowed: str) -> HttpRefusal:
    """The refusal of a method that a path does not have; `allowed` lists those that it has."""
    return HttpRefusal(405, 0, f"The method {request.method} is not allowed here.", {"Allow": allowed})


def only_reads(request: web.Request) -> None:
    """Raises HttpRefusal (405) for a method that would change something."""
    if request.method not in ("GET", "HEAD"):
        raise not_allowed(request, "GET")


def refusal_of(refused: Refused) -> HttpRefusal:
    """Turn a refusal from the broker's core into an HTTP one."""
    status, sub_code = http_status_of(refused.reason)
    return HttpRefusal(
        status, sub_code, refused.description, {"Retry-After": "2"} if status in (429, 503) else None
    )


def found(namespace: Namespace, name: str) -> Entity:
    """The entity that a request about messages is for. Raises HttpRefusal (410) if there is none, Refused."""
    entity = namespace.find(name)
    if entity is None:
        why = namespace.missing(name)
        raise gone(why) if why.reason is Reason.ENTITY_NOT_FOUND else why
    return entity


@contextlib.contextmanager
def counted(entity: Entity) -> Iterator[None]:
    """Count a refusal of a request about messages in the metrics of its entity. Raises HttpRefusal (410)
    instead if the entity was deleted meanwhile."""
    try:
        yield
    except Refused as why:
        entity.meter.refused(why.reason, 1)
        if why.reason is Reason.ENTITY_NOT_FOUND:
            raise gone(why) from why
        raise


def gone(why: Refused) -> HttpRefusal:
    """The answer for a missing entity: 410, unlike that of administration (HTTP contract 4.1)."""
    return HttpRefusal(410, 0, why.description)
