"""Where the broker is and how to log in: an AMQP address or a Service Bus connection string, as plain data.

Opens nothing. Secrets are left out of every text that an endpoint gives of itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from pyspark_partibus.errors import OptionError

AMQP_PORT, AMQPS_PORT = 5672, 5671
OPTION = "endpoint"
ENCODED = "A name or key with / + = @ : and the like must be percent-encoded (urllib.parse.quote)"
PARTS = (
    "Endpoint",
    "SharedAccessKeyName",
    "SharedAccessKey",
    "SharedAccessSignature",
    "EntityPath",
    "UseDevelopmentEmulator",
)
"""The parts that a connection string may have."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A broker, and the credentials for it. Two equal endpoints may share a connection."""

    host: str
    port: int
    tls: bool
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    token: str | None = field(default=None, repr=False)
    """A SAS token or other token for `$cbs`, instead of a password."""
    signs_tokens: bool = False
    """The key signs tokens for `$cbs`; it is no password for the login."""
    mechanism: str = "ANONYMOUS"
    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    entity: str | None = None
    """The entity that a connection string names (`EntityPath`)."""

    needs_credentials: bool = False
    """Set for a connection string without a key or token: the options must give one."""

    @property
    def has_credentials(self) -> bool:
        """Whether the endpoint has a user name or a token."""
        return self.username is not None or self.token is not None

    @property
    def address(self) -> str:
        """Scheme, host and port, for logs and errors."""
        return f"{'amqps' if self.tls else 'amqp'}://{self.host}:{self.port}"


def parse_endpoint(text: str) -> Endpoint:
    """Read `amqp[s]://[user:password@]host[:port]` or a connection string. Raises OptionError."""
    text = text.strip()
    if not text:
        raise OptionError(OPTION, "is empty")
    if text.lower().startswith(("amqp://", "amqps://")):
        return _from_url(text)
    if "=" in text:
        return _from_connection_string(text)
    raise OptionError(OPTION, "is neither amqp://…, amqps://… nor a Service Bus connection string")


def _from_url(text: str) -> Endpoint:
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError:
        raise OptionError(OPTION, f"is not a valid address. {ENCODED}") from None
    if not parts.hostname:
        raise OptionError(OPTION, "names no host")
    if parts.path.strip("/") or parts.query or parts.fragment:
        raise OptionError(OPTION, f"has a path; name the queue or topic in the option 'entity'. {ENCODED}")
    tls = parts.scheme.lower() == "amqps"
    username = None if parts.username is None else unquote(parts.username)
    return Endpoint(
        parts.hostname,
        port or (AMQPS_PORT if tls else AMQP_PORT),
        tls,
        username=username,
        password=None if parts.password is None else unquote(parts.password),
        mechanism="ANONYMOUS" if username is None else "PLAIN",
    )


def _parts_of(connection_string: str) -> dict[str, str]:
    """Its values by name in lower case. Raises OptionError."""
    values: dict[str, str] = {}
    for part in connection_string.split(";"):
        name, equals, value = part.partition("=")
        if not part.strip():
            continue
        if not equals:
            raise OptionError(OPTION, "has a part without '=' in its connection string")
        values[name.strip().lower()] = value.strip()
    if values.keys() - {part.lower() for part in PARTS}:  # not named: it may be half of a secret
        raise OptionError(OPTION, f"has a part that is none of {', '.join(PARTS)} in its connection string")
    return values


def _host_and_port(address: str) -> tuple[str, int | None]:
    """Those of the part `Endpoint` of a connection string. Raises OptionError."""
    try:
        parts = urlsplit(address)
        host, port = parts.hostname, parts.port
    except ValueError:
        raise OptionError(OPTION, "has a connection string without a valid Endpoint") from None
    if parts.scheme.lower() != "sb" or not host:
        raise OptionError(OPTION, "has a connection string without Endpoint=sb://…")
    return host, port


def _from_connection_string(text: str) -> Endpoint:
    """A Service Bus connection string. `UseDevelopmentEmulator=true` asks for AMQP without TLS."""
    values = _parts_of(text)
    host, port = _host_and_port(values.get("endpoint", ""))
    tls = values.get("usedevelopmentemulator", "").lower() != "true"
    token = values.get("sharedaccesssignature")
    name, key = values.get("sharedaccesskeyname"), values.get("sharedaccesskey")
    if (name is None) != (key is None):
        raise OptionError(
            OPTION,
            "has a connection string with one of SharedAccessKeyName and SharedAccessKey; it needs both",
        )
    if token is not None and key is not None:
        raise OptionError(
            OPTION, "has a connection string with both SharedAccessKey and SharedAccessSignature"
        )
    return Endpoint(
        host,
        port or (AMQPS_PORT if tls else AMQP_PORT),
        tls,
        username=name,
        password=key,
        token=token,
        signs_tokens=key is not None,
        needs_credentials=key is None and token is None,
        entity=values.get("entitypath"),
    )
