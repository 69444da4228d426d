"""Host names and origins of the HTTP port: which requests are for this broker, and which come from another
site's page."""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from broker.entities.descriptions import QueueSettings
from broker.http.refusals import HttpRefusal
from broker.http.sites import Sites
from broker.settings.certificates import TlsFiles, WrongCertificate, certificate_names, tls_files
from broker.settings.settings import WrongSettings, load_settings
from tests.support.http_stack import HttpStack, http_stack
from tests.support.sas import sas_token

WITHIN_S = 10
SITES = Sites(["broker.example.com", "*.bus.example.com", "Upper.Example.org."], ["https://app.example.com"])


def status(
    host: str | None = "localhost:5300",
    origin: str | None = None,
    *,
    scheme: str = "http",
    target: str = "/q",
    http_1_0: bool = False,
    anybody: bool = False,
    hosts: Sequence[str] | None = None,
    sites: Sites = SITES,
) -> int:
    """The status of the answer to such a request: 200, or the refusal's status."""
    try:
        sites.check(
            scheme=scheme,
            target=target,
            http_1_0=http_1_0,
            hosts=hosts if hosts is not None else [host] if host is not None else [],
            origins=[origin] if origin is not None else [],
            under_any_name=anybody,
        )
    except HttpRefusal as refusal:
        return refusal.status
    return 200


# --- Host ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host",
    [
        "localhost",
        "localhost:5300",
        "LOCALHOST.",
        "orders.localhost",
        "127.0.0.1:5300",
        "10.244.1.17:5300",
        "[::1]:5300",
        "[fe80::1%eth0]",
        "partibus",
        "my_service:5300",
        "partibus-0:",
        "broker.example.com",
        "Broker.Example.Com.:8080",
        "one.bus.example.com",
        "upper.example.org",
    ],
)
def test_addresses_local_names_and_the_known_names_are_answered(host: str) -> None:
    assert status(host) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "bus.example.com",
        "a.b.bus.example.com",
        "broker.example.com.evil.test",
        "localhost.evil.test",
        "127.0.0.1.nip.test",
    ],
)
def test_any_other_name_is_refused_with_what_to_set(host: str) -> None:
    with pytest.raises(HttpRefusal) as caught:
        SITES.check(
            scheme="http", target="/q", http_1_0=False, hosts=[host], origins=[], under_any_name=False
        )
    assert caught.value.status == 421
    assert host in caught.value.detail and "PARTIBUS_HOSTNAMES" in caught.value.detail
    assert status(host, anybody=True) == 200


@pytest.mark.parametrize(
    "host",
    [
        "",
        "user@localhost",
        "user:secret@localhost:1",
        "a b",
        "local host:80",
        "localhost:99999",
        "localhost:-1",
        "[::1",
        "évil",
        "a/b",
    ],
)
def test_a_host_that_is_none_is_refused(host: str) -> None:
    assert status(host) == 400
    assert status(host, anybody=True) == 400


def test_a_request_has_one_host_but_may_have_none_in_http_1_0() -> None:
    assert status(None) == 400
    assert status(None, http_1_0=True) == 200
    assert status(hosts=["localhost", "localhost"]) == 400
    assert status(None, "http://localhost", http_1_0=True) == 403  # nothing to compare the origin with


def test_a_request_for_a_proxy_is_refused() -> None:
    for target in ("http://evil.example/q", "http://localhost:5300/q", "localhost:443", "*", ""):
        assert status(target=target) == 400


def test_the_star_permits_every_name() -> None:
    assert status("whatever.example", sites=Sites(["*"], [])) == 200


# --- Origin -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("host", "origin", "scheme"),
    [
        ("localhost:5300", "http://localhost:5300", "http"),
        ("localhost", "http://localhost", "http"),
        ("localhost", "http://localhost:80", "http"),
        ("localhost", "https://LOCALHOST", "https"),
        ("[::1]:5300", "https://[::1]:5300", "https"),
        ("localhost:5300", "https://app.example.com", "http"),
        ("localhost:5300", "https://app.example.com:443", "http"),
    ],
)
def test_a_page_of_this_site_or_of_a_configured_one_may_ask(host: str, origin: str, scheme: str) -> None:
    assert status(host, origin, scheme=scheme) == 200


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "",
        "http://evil.example",
        "http://localhost",
        "http://localhost:3000",
        "https://localhost:5300",
        "http://127.0.0.1:5300",
        "http://localhost:5300.evil.example",
        "http://user@localhost:5300",
        "http://app.example.com",
        "file://",
        "chrome-extension://abcdefgh",
        "localhost:5300",
    ],
)
def test_a_page_of_another_site_is_refused(origin: str) -> None:
    assert status("localhost:5300", origin) == 403
    assert status("localhost:5300", origin, anybody=True) == 403


def test_a_rebound_name_is_refused_though_the_page_seems_to_be_its_own() -> None:
    assert status("evil.example:5300", "http://evil.example:5300") == 421


# --- over the port ------------------------------------------------------------------------------------------


@pytest.fixture
async def stack(tmp_path: Path) -> AsyncIterator[HttpStack]:
    async with http_stack(
        tmp_path, hostnames=("bus.example.com",), origins=("http://app.example.com",)
    ) as running:
        await running.namespace.create_entity("orders", QueueSettings())
        yield running


async def raw(stack: HttpStack, request: bytes) -> bytes:
    """Send these bytes as they are and return the whole answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", stack.port)
    writer.write(request)
    async with asyncio.timeout(WITHIN_S):
        answer = await reader.read()
    writer.close()
    return answer


async def test_a_rebound_name_deletes_nothing_and_learns_what_to_set(stack: HttpStack) -> None:
    code, text, _ = await stack.ask("DELETE", "/orders", headers={"Host": f"evil.example:{stack.port}"})
    assert (code, "PARTIBUS_HOSTNAMES" in text) == (421, True)
    assert stack.namespace.describe("orders") is not None
    assert (await stack.ask("DELETE", "/orders", headers={"Host": "bus.example.com"}))[0] == 200


async def test_health_and_metrics_answer_under_any_name_but_administration_does_not(stack: HttpStack) -> None:
    rebound = {"Host": "evil.example"}
    for path in ("/health", "/metrics"):
        for method in ("GET", "HEAD"):
            assert (await stack.ask(method, path, token=None, headers=rebound))[0] == 200
        assert (await stack.ask("POST", path, token=None, headers=rebound))[0] == 421
        assert (await stack.ask("GET", path, headers=rebound))[
            0
        ] == 421  # with a token, this path is a queue's name
    assert (await stack.ask("GET", "/orders", headers=rebound))[0] == 421


async def test_another_sites_page_gets_neither_an_answer_nor_permission(stack: HttpStack) -> None:
    page = {"Origin": "http://evil.example"}
    assert (await stack.ask("GET", "/orders", headers=page))[0] == 403
    code, _, headers = await stack.ask(
        "OPTIONS",
        "/orders",
        token=None,
        headers={
            **page,
            "Access-Control-Request-Method": "DELETE",
            "Access-Control-Request-Headers": "authorization",
        },
    )
    assert code == 403
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert (await stack.ask("GET", "/orders", headers={"Origin": stack.url}))[0] == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null"])
async def test_a_websocket_of_another_sites_page_is_refused(stack: HttpStack, origin: str) -> None:
    url = f"{stack.url}/$servicebus/websocket"
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await stack.session.ws_connect(url, protocols=("AMQPWSB10",), origin=origin)
    assert caught.value.status == 403
    for own in (stack.url, "http://app.example.com"):
        async with stack.session.ws_connect(url, protocols=("AMQPWSB10",), origin=own) as websocket:
            await websocket.send_bytes(b"AMQP")
            assert await websocket.receive_bytes() == b"AMQP"


async def test_hosts_that_contradict_each_other_and_targets_for_a_proxy_are_refused(stack: HttpStack) -> None:
    token = sas_token(f"https://127.0.0.1:{stack.port}").encode()
    for request in (
        b"DELETE /orders HTTP/1.1\r\n",
        b"DELETE /orders HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n",
        b"DELETE /orders HTTP/1.1\r\nHost: a@localhost\r\n",
        b"DELETE http://localhost/orders HTTP/1.1\r\nHost: localhost\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\n",
    ):
        answer = await raw(stack, request + b"Authorization: " + token + b"\r\nConnection: close\r\n\r\n")
        assert answer.split(b" ", 2)[1] == b"400", (request, answer)
    assert stack.namespace.describe("orders") is not None


# --- sources of the names -----------------------------------------------------------------------------------


def test_names_and_origins_are_lists_separated_by_commas_or_in_json(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PARTIBUS_HOSTNAMES", "partibus.ns.svc, *.example.com")
    monkeypatch.setenv("PARTIBUS_ORIGINS", '["https://app.example.com:8443"]')
    settings = load_settings()
    assert settings.hostnames == ("partibus.ns.svc", "*.example.com")
    assert settings.origins == ("https://app.example.com:8443",)
    monkeypatch.setenv("PARTIBUS_HOSTNAMES", "none")
    assert load_settings().hostnames == ()


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("HOSTNAMES", "a.example:80"),
        ("HOSTNAMES", "http://a.example"),
        ("HOSTNAMES", "[1"),
        ("ORIGINS", "app.example"),
        ("ORIGINS", "http://a/b"),
    ],
)
def test_what_is_neither_a_name_nor_an_origin_ends_the_start(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(f"PARTIBUS_{variable}", value)
    with pytest.raises(WrongSettings, match=f"PARTIBUS_{variable}"):
        load_settings()


def test_the_names_of_a_certificate_are_read_from_it(tmp_path: Path) -> None:
    made = tls_files(load_settings(data_dir=tmp_path), 1_800_000_000_000)
    assert "localhost" in certificate_names(made)
    given = TlsFiles(tmp_path / "given.pem", tmp_path / "given-key.pem", None)
    given.certificate.write_bytes(
        _certificate([x509.DNSName("*.example.com"), x509.DNSName("bus.example.org")])
    )
    assert certificate_names(given) == ("*.example.com", "bus.example.org")
    given.certificate.write_bytes(_certificate([]))
    assert certificate_names(given) == ()
    given.certificate.write_text("nonsense")
    with pytest.raises(WrongCertificate, match=r"given\.pem"):
        certificate_names(given)


def _certificate(names: list[x509.GeneralName]) -> bytes:
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "common.example.com")])
    builder = (
        x509.CertificateBuilder().subject_name(subject).issuer_name(subject).public_key(key.public_key())
    )
    builder = builder.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


@pytest.mark.parametrize(
    "wrong",
    [
        "*",
        "null",
        "app.example.com",
        "https://app.example.com/",
        "chrome-extension://abcdef",
        "https://app.example.com:70000",
    ],
)
def test_an_origin_that_could_never_match_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """An origin with a scheme other than http and https was once accepted, and then ignored."""
    monkeypatch.setenv("PARTIBUS_ORIGINS", wrong)
    with pytest.raises(WrongSettings, match="give an origin as http or https") as refused:
        load_settings()
    assert "PARTIBUS_ORIGINS" in str(refused.value) and wrong in str(refused.value)


@pytest.mark.parametrize(
    "wrong", ["http://bus.example.com", "bus.example.com:5300", "a b", "*.*.example.com"]
)
def test_a_name_with_more_than_a_name_is_refused_in_words(
    monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.setenv("PARTIBUS_HOSTNAMES", wrong)
    with pytest.raises(WrongSettings, match="without scheme, port or path"):
        load_settings()
