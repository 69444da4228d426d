"""A plain HTTP client for the REST API: one keep-alive connection, as `http.client` makes it."""

from __future__ import annotations

import http.client
import json
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from tests.support.http_entries import queue_body
from tests.support.sas import KEY, KEY_NAME, sas_token


@dataclass(slots=True, frozen=True)
class RestAnswer:
    """An answer. `headers` has the names in lower case."""

    status: int
    headers: Mapping[str, str]
    names: tuple[str, ...]
    """The names of the headers as they came."""
    body: bytes

    @property
    def broker_properties(self) -> dict[str, Any]:
        """What the header of this name holds."""
        found = json.loads(self.headers["brokerproperties"])
        assert isinstance(found, dict)
        return found

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def lock(self) -> str:
        """The path of the message's lock, from `Location`."""
        return "/" + self.headers["location"].partition("://")[2].partition("/")[2]


class RestClient:
    """One client. Use it in a `with` statement, or close it."""

    def __init__(
        self,
        port: int,
        *,
        key_name: str = KEY_NAME,
        key: str = KEY,
        timeout_s: float = 30,
        host: str = "127.0.0.1",
    ) -> None:
        """`host` is the broker's name, as `Host` and tokens have it."""
        self._host = host
        self._port, self._key_name, self._key = port, key_name, key
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)

    def ask(
        self,
        method: str,
        path: str,
        body: bytes | str | None = None,
        headers: Mapping[str, str] | None = None,
        *,
        token: str | None = "",
    ) -> RestAnswer:
        """Send a request. By default, `token` is a new one for the whole namespace; None sends none."""
        sent = {"Host": f"{self._host}:{self._port}", **(headers or {})}
        if token is not None:
            resource = f"http://{self._host}:{self._port}/"
            sent["Authorization"] = token or sas_token(resource, key_name=self._key_name, key=self._key)
        encoded = {name: text.encode() for name, text in sent.items()}
        self._connection.request(method, path, body=body, headers=encoded)
        answer = self._connection.getresponse()
        content = answer.read()
        found = [(name, text.encode("latin-1").decode()) for name, text in answer.getheaders()]
        return RestAnswer(
            answer.status,
            {name.lower(): text for name, text in found},
            tuple(name for name, _ in found),
            content,
        )

    def create(self, path: str, inner: str = "", kind: str = "QueueDescription") -> None:
        """Create an entity, a subscription or a rule with these elements."""
        answer = self.ask("PUT", path, queue_body(inner, kind))
        assert answer.status == 201, answer.body

    def send(self, path: str, body: bytes | str = b"", **headers: str) -> None:
        """Send one message, with these headers (an underscore stands for a hyphen)."""
        answer = self.ask(
            "POST",
            f"{path}/messages",
            body,
            {name.replace("_", "-"): text for name, text in headers.items()},
        )
        assert answer.status == 201, answer.body

    def receive(self, path: str, *, method: str = "POST", timeout: float = 0) -> RestAnswer:
        """Receive one message with a lock, or receive and delete it (DELETE)."""
        return self.ask(method, f"{path}/messages/head?timeout={timeout:g}")

    def shut(self) -> None:
        """End the connection although a request may wait for its answer in another thread."""
        assert self._connection.sock is not None, "it is connected"
        self._connection.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()

    def __enter__(self) -> RestClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
