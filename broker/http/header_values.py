"""Application properties as HTTP headers, one for each property (HTTP contract 4.2, 4.3). Pure.

    "text"                              a string; \\" is a quote, \\u and four digits any character
    "Sun, 06 Nov 1994 08:49:37 GMT"     a time
    12      1.5      true               a whole number, a fraction, a truth value
    anything else                       a string

Numbers are written as in JSON. What is written in another way, such as `007` or `+5`, and what does not fit
64 bits, is a string, so that no digit is lost.

Text is UTF-8, and control characters are written as `\\u` and four hexadecimal digits. A backslash is
itself, except in front of a quote or of `u` and such digits; where the text has one there, it is written
`\\u005c`. So every text comes back as it was. A property whose name cannot be the name of a header, or is one
that HTTP uses itself, travels with others in the JSON object of the header `Partibus-Properties`.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from email.utils import format_datetime, parsedate_to_datetime
from typing import Any, Final

from broker.base.errors import Reason, Refused
from broker.base.strict_json import RepeatedField, read_json
from broker.message.property_sizes import METADATA_BYTES_MAX

OTHER_PROPERTIES: Final = "Partibus-Properties"
"""The header for properties that cannot be headers of their own, as a JSON object."""

_HTTP_HEADERS: Final = frozenset((
    "authorization", "servicebussupplementaryauthorization", "servicebusdlqsupplementaryauthorization",
    "brokerproperties", "partibus-properties", "host", "user-agent", "connection", "keep-alive", "te",
    "trailer", "transfer-encoding", "upgrade", "upgrade-insecure-requests", "expect", "date", "cookie",
    "set-cookie", "cache-control", "pragma", "origin", "referer", "range", "via", "warning",
    "forwarded", "traceparent", "tracestate", "server", "location", "retry-after", "if-match",
    "if-none-match", "dnt",
))  # fmt: skip
"""Headers that belong to HTTP and not to the message."""
_OF_MESSAGES: Final = frozenset(("brokerproperties", OTHER_PROPERTIES.casefold()))
"""Those that say something about the message and are no properties themselves."""
_HTTP_PREFIXES: Final = ("accept", "content-", "proxy-", "sec-", "x-forwarded-", "x-ms-")
_NAME: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_WHOLE: Final = re.compile(r"0|-?[1-9][0-9]{0,18}")
_FRACTION: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+(?:[eE][-+]?[0-9]+)?|[eE][-+]?[0-9]+)")
_DATE: Final = re.compile(r"[A-Z][a-z]{2}, [0-9]{2} [A-Z][a-z]{2} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT")
_ESCAPE: Final = re.compile(r'\\(?:"|u([0-9A-Fa-f]{4}))')
_TO_ESCAPE: Final = re.compile(r'"|\\(?=["u]|$)|[\x00-\x1f\x7f-\x9f\ud800-\udfff]')
LONG_MAX: Final = 2**63 - 1


def is_property(name: str) -> bool:
    """Whether a header of this name stands for an application property."""
    folded = name.casefold()
    return folded not in _HTTP_HEADERS and not folded.startswith(_HTTP_PREFIXES)


def read_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[str, Any]:
    """The application properties among a request's headers, with the names as the client spelled them. Raises
    Refused, also for a header that was sent twice: neither of the two may be dropped."""
    properties: dict[str, Any] = {}
    others: dict[str, Any] = {}
    known: set[str] = set()
    for raw_name, raw_value in headers:
        name, text = raw_name.decode("latin-1"), _decoded(raw_value)
        folded = name.casefold()
        if not (is_property(name) or folded in _OF_MESSAGES):
            continue
        if folded in known:
            raise Refused(Reason.ARGUMENT, f"The header '{name:.80}' was sent twice.")
        known.add(folded)
        if folded == OTHER_PROPERTIES.casefold():
            others = _read_others(text)
        elif folded not in _OF_MESSAGES:
            properties[name] = read_value(text)
    if twice := properties.keys() & others.keys():
        text = f"The property '{min(twice):.80}' is a header, and in {OTHER_PROPERTIES}, too."
        raise Refused(Reason.ARGUMENT, text)
    return properties | others


def _decoded(value: bytes) -> str:
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _read_others(text: str) -> dict[str, Any]:
    return checked_properties(read_object(text, OTHER_PROPERTIES))


def read_object(text: str, header: str) -> dict[str, Any]:
    """The JSON object in a header. Raises Refused."""
    try:
        found = read_json(text)
    except RepeatedField as error:
        raise Refused(Reason.ARGUMENT, f"The header {header} cannot be used: {error}.") from error
    except (ValueError, RecursionError) as error:
        raise Refused(Reason.ARGUMENT, f"The header {header} is not JSON: {error}.") from error
    if not isinstance(found, dict):
        raise Refused(Reason.ARGUMENT, f"The header {header} must hold a JSON object.")
    return found


def checked_properties(properties: Mapping[str, Any]) -> dict[str, Any]:
    """Application properties that came as JSON. Raises Refused for values that are neither text, a number, a
    truth value nor null, and for more properties than a message may have."""
    if (size := sum(map(len, properties))) > METADATA_BYTES_MAX:  # before they are encoded one by one
        raise Refused(
            Reason.MESSAGE_TOO_LARGE,
            f"The names of the message's properties take {size} bytes; the limit of its annotations and "
            f"properties is {METADATA_BYTES_MAX}.",
        )
    for name, value in properties.items():
        if not isinstance(value, str | int | float | None):
            raise Refused(
                Reason.ARGUMENT, f"The property '{name:.80}' must be text, a number, true, false or null."
            )
        if isinstance(value, float) and not math.isfinite(value):
            raise Refused(Reason.ARGUMENT, f"The property '{name:.80}' is not a number that JSON can write.")
        if isinstance(value, int) and not -LONG_MAX - 1 <= value <= LONG_MAX:
            raise Refused(Reason.ARGUMENT, f"The property '{name:.80}' does not fit 64 bits.")
    return dict(properties)


def read_value(text: str) -> Any:
    """The value of one property."""
    text = text.strip()
    if len(text) > 1 and text[0] == text[-1] == '"':
        return _read_quoted(text[1:-1])
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text) and -LONG_MAX - 1 <= int(text) <= LONG_MAX:
        return int(text)
    if _FRACTION.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def _read_quoted(inner: str) -> Any:
    if _DATE.fullmatch(inner) and (moment := read_date(inner)) is not None:
        return moment
    text = _ESCAPE.sub(lambda found: chr(int(found[1], 16)) if found[1] else '"', inner)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")  # joins pairs of surrogates


def read_date(text: str) -> datetime.datetime | None:
    """The time in a date as HTTP writes it; None if it is no such date, or not in the years 1 to 9999."""
    try:
        moment = parsedate_to_datetime(text)
        return moment.replace(tzinfo=moment.tzinfo or datetime.UTC).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


def write_date(moment: datetime.datetime) -> str:
    """A time as HTTP writes it, to the second."""
    return format_datetime(moment, usegmt=True)


def write_headers(properties: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The headers of a message's application properties."""
    others: dict[str, Any] = {}
    taken: set[str] = set()
    for name, value in properties.items():
        folded = name.casefold()
        if _NAME.fullmatch(name) and is_property(name) and folded not in taken and _is_simple(value):
            taken.add(folded)  # names that differ in case alone would be one header
            yield name, write_value(value)
        else:
            others[name] = value
    if others:
        yield OTHER_PROPERTIES, write_json(others)


def _is_simple(value: Any) -> bool:
    return value is not None and not isinstance(value, list | dict)


def write_value(value: Any) -> str:
    """The value of a property's header."""
    match value:
        case bool():
            return "true" if value else "false"
        case int() | float():
            return repr(value)
        case datetime.datetime():
            return f'"{write_date(value)}"'
    return '"' + _TO_ESCAPE.sub(_escaped, str(value)) + '"'


def _escaped(found: re.Match[str]) -> str:
    character = found[0]
    return '\\"' if character == '"' else f"\\u{ord(character):04x}"


def write_json(value: Any) -> str:
    """JSON in ASCII without spaces, its keys in alphabetical order."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_json_of, allow_nan=False)


def _json_of(value: object) -> str:
    assert isinstance(value, datetime.datetime), f"{value!r:.80} was not made to be shown"
    return write_date(value)
