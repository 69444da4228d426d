"""What a path of the runtime REST API asks for (HTTP contract 4.1). Pure.

    POST    {path}/messages                   send, one message or a batch
    POST    {path}/messages/head              receive with a lock
    DELETE  {path}/messages/head              receive and delete
    DELETE  {path}/messages/{any}/{token}     complete
    PUT     {path}/messages/{any}/{token}     unlock
    POST    {path}/messages/{any}/{token}     renew the lock

`{path}` is an address as on links (`broker/access/addresses.py`). `{any}` is a message-id or a sequence
number; the lock token alone decides. All other requests are administration.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import unquote

from broker.access.addresses import Address, BadAddress, parse_address
from broker.http.broker_properties import read_token
from broker.http.refusals import HttpRefusal


class Action(enum.Enum):
    """What a request does with messages."""

    SEND, PEEK_LOCK, RECEIVE_AND_DELETE, COMPLETE, UNLOCK, RENEW = range(6)


_Actions = Mapping[str, Action]

_OF_MESSAGES: _Actions = {"POST": Action.SEND}
_OF_HEAD: _Actions = {"POST": Action.PEEK_LOCK, "DELETE": Action.RECEIVE_AND_DELETE}
_OF_LOCK: _Actions = {"DELETE": Action.COMPLETE, "PUT": Action.UNLOCK, "POST": Action.RENEW}


@dataclass(slots=True, frozen=True)
class MessagePath:
    """What a request asks for, and where."""

    action: Action
    address: Address
    token: bytes = b""
    """The lock token, for an action that needs one."""


def read_message_path(method: str, raw_path: str) -> MessagePath | None:
    """None for a request that is not about messages. Raises HttpRefusal for a wrong address."""
    actions, base, token = _form(raw_path)
    action = actions.get(method)
    if action is None or not base:
        return None
    try:
        address = parse_address("/" + base)
    except BadAddress as error:
        raise HttpRefusal(400, 40000, str(error)) from error
    if address.node:
        raise HttpRefusal(400, 40000, f"Messages are not kept at '{address.path}'.")
    return MessagePath(action, address, token)


def message_methods(raw_path: str) -> tuple[str, str]:
    """The entity whose messages a path is about, and the methods that it has, for a request with another one.
    Both are empty if the path is about something else."""
    actions, base, _ = _form(raw_path)
    try:
        return (parse_address("/" + base).entity, ", ".join(actions)) if actions and base else ("", "")
    except BadAddress:
        return "", ""


def _form(raw_path: str) -> tuple[_Actions, str, bytes]:
    """What the methods of a path do, the address in it, and its lock token."""
    segments = raw_path.strip("/").split("/")
    names = [unquote(segment).casefold() for segment in segments[-3:]]
    if names[-1] == "messages":
        return _OF_MESSAGES, "/".join(segments[:-1]), b""
    if names[-2:] == ["messages", "head"]:
        return _OF_HEAD, "/".join(segments[:-2]), b""
    if names[0] == "messages" and len(names) == 3 and (token := read_token(names[2])) is not None:
        return _OF_LOCK, "/".join(segments[:-3]), token
    return {}, "", b""
