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
from dataclasses import dataclass
from urllib.parse import unquote

from broker.access.addresses import Address, BadAddress, parse_address
from broker.http.broker_properties import read_token
from broker.http.refusals import HttpRefusal


class Action(enum.Enum):
    """What a request does with messages."""

    SEND, PEEK_LOCK, RECEIVE_AND_DELETE, COMPLETE, UNLOCK, RENEW = range(6)


_OF_HEAD = {"POST": Action.PEEK_LOCK, "DELETE": Action.RECEIVE_AND_DELETE}
_OF_LOCK = {"DELETE": Action.COMPLETE, "PUT": Action.UNLOCK, "POST": Action.RENEW}


@dataclass(slots=True, frozen=True)
class MessagePath:
    """What a request asks for, and where."""

    action: Action
    address: Address
    token: bytes = b""
    """The lock token, for an action that needs one."""


def read_message_path(method: str, raw_path: str) -> MessagePath | None:
    """None for a request that is not about messages. Raises HttpRefusal for a wrong address."""
    segments = raw_path.strip("/").split("/")
    names = [unquote(segment).casefold() for segment in segments[-3:]]
    action, token = None, None
    if names[-1] == "messages" and method == "POST":
        action, base = Action.SEND, segments[:-1]
    elif names[-2:] == ["messages", "head"]:
        action, base = _OF_HEAD.get(method), segments[:-2]
    elif names[0] == "messages" and len(names) == 3:
        token = read_token(names[2])
        action, base = _OF_LOCK.get(method) if token is not None else None, segments[:-3]
    if action is None or not base:
        return None
    try:
        address = parse_address("/" + "/".join(base))
    except BadAddress as error:
        raise HttpRefusal(400, 40000, str(error)) from error
    if address.node:
        raise HttpRefusal(400, 40000, f"Messages are not kept at '{address.path}'.")
    return MessagePath(action, address, token or b"")
