"""Certificates that the broker makes in the data folder."""

from __future__ import annotations

import ssl
import sys
import time
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from broker.settings.certificates import (
    RENEW_DAYS,
    SERVER_DAYS,
    WrongCertificate,
    named_host,
    server_context,
    tls_files,
)
from broker.settings.settings import Settings, load_settings

DAY_MS = 86_400_000
P256 = bytes.fromhex("06082a8648ce3d030107")
"""The name of the curve in a certificate, in DER."""
UNKNOWN_CURVE = P256[:-1] + b"\x17"


def now_ms() -> int:
    return int(time.time() * 1000)


def settings_in(folder: Path, **more: object) -> Settings:
    return load_settings(data_dir=folder, **more)


def serial_of(path: Path) -> int:
    return x509.load_pem_x509_certificate(path.read_bytes()).serial_number


def handshake(server: ssl.SSLContext, authority: Path, name: str) -> None:
    """Do a whole TLS handshake in memory. Raises ssl.SSLError if the client does not trust the
    certificate."""
    client = ssl.create_default_context(cafile=str(authority))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    for _ in range(10):
        for end in tuple(ends):
            try:
                end.do_handshake()
                ends.remove(end)
            except ssl.SSLWantReadError:
                continue
        if not ends:
            return
    raise AssertionError("the handshake came to no end")


@pytest.mark.parametrize("name", ["localhost", "127.0.0.1", "::1"])
def test_a_client_that_trusts_the_authority_connects_by_every_local_name(tmp_path: Path, name: str) -> None:
    files = tls_files(settings_in(tmp_path), now_ms())
    assert files.authority is not None
    handshake(server_context(files), files.authority, name)


def test_names_of_the_settings_are_in_the_certificate_which_is_made_again_for_new_ones(
    tmp_path: Path,
) -> None:
    for name in ("partibus", "bus.test"):
        files = tls_files(settings_in(tmp_path, certificate_names=name), now_ms())
        assert files.authority is not None
        handshake(server_context(files), files.authority, name)
    assert files.authority is not None
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(server_context(files), files.authority, "partibus")


def test_a_client_that_does_not_trust_it_does_not_connect(tmp_path: Path) -> None:
    files = tls_files(settings_in(tmp_path / "one"), now_ms())
    other = tls_files(settings_in(tmp_path / "two"), now_ms())
    assert other.authority is not None
    with pytest.raises(ssl.SSLError):
        handshake(server_context(files), other.authority, "localhost")


def test_private_keys_are_their_owners_only(tmp_path: Path) -> None:
    tls_files(settings_in(tmp_path), now_ms())
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "tls").iterdir()}
    assert modes == {"ca.pem": 0o644, "ca-key.pem": 0o600, "server.pem": 0o644, "server-key.pem": 0o600}


def test_the_next_start_uses_the_same_files(tmp_path: Path) -> None:
    first = tls_files(settings_in(tmp_path), now_ms())
    serial = serial_of(first.certificate)
    assert tls_files(settings_in(tmp_path), now_ms() + DAY_MS) == first
    assert serial_of(first.certificate) == serial


def test_a_certificate_that_runs_out_is_renewed_under_the_same_authority(tmp_path: Path) -> None:
    files = tls_files(settings_in(tmp_path), now_ms())
    assert files.authority is not None
    authority, serial = files.authority.read_bytes(), serial_of(files.certificate)
    tls_files(settings_in(tmp_path), now_ms() + (SERVER_DAYS - RENEW_DAYS + 1) * DAY_MS)
    assert serial_of(files.certificate) != serial
    assert files.authority.read_bytes() == authority


def test_another_name_of_the_machine_gets_another_certificate(tmp_path: Path) -> None:
    files = tls_files(settings_in(tmp_path), now_ms())
    serial = serial_of(files.certificate)
    assert files.authority is not None
    tls_files(settings_in(tmp_path, host="broker.example"), now_ms())
    assert serial_of(files.certificate) != serial
    handshake(server_context(files), files.authority, "broker.example")


def test_a_certificate_whose_damage_names_an_unknown_curve_is_made_again(tmp_path: Path) -> None:
    files = tls_files(settings_in(tmp_path), now_ms())
    certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes()).public_bytes(Encoding.DER)
    assert certificate.count(P256) == 1
    files.certificate.write_text(ssl.DER_cert_to_PEM_cert(certificate.replace(P256, UNKNOWN_CURVE)))
    files = tls_files(settings_in(tmp_path), now_ms())
    assert files.authority is not None
    handshake(server_context(files), files.authority, "localhost")


@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem", "server.pem", "server-key.pem"])
def test_a_file_that_is_damaged_or_missing_is_made_again(tmp_path: Path, name: str) -> None:
    files = tls_files(settings_in(tmp_path), now_ms())
    (tmp_path / "tls" / name).write_bytes(b"damaged")
    tls_files(settings_in(tmp_path), now_ms())
    (tmp_path / "tls" / name).unlink()
    tls_files(settings_in(tmp_path), now_ms())
    assert files.authority is not None
    handshake(server_context(files), files.authority, "localhost")


def test_a_certificate_that_is_given_is_used_and_nothing_is_made(tmp_path: Path) -> None:
    made = tls_files(settings_in(tmp_path / "made"), now_ms())
    files = tls_files(
        settings_in(tmp_path / "data", tls_certificate=made.certificate, tls_key=made.key), now_ms()
    )
    assert (files.certificate, files.key, files.authority) == (made.certificate, made.key, None)
    assert not (tmp_path / "data").exists()
    assert made.authority is not None
    handshake(server_context(files), made.authority, "localhost")


def test_a_certificate_that_cannot_be_used_is_refused_by_its_file(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("nothing")
    expected = r"PARTIBUS_TLS_CERTIFICATE: .*wrong\.pem, PARTIBUS_TLS_KEY: .*wrong\.pem: not a certificate"
    with pytest.raises(WrongCertificate, match=expected):
        server_context(tls_files(settings_in(tmp_path, tls_certificate=wrong, tls_key=wrong), now_ms()))


@pytest.mark.parametrize("missing", ["certificate", "key"])
def test_a_certificate_or_key_that_is_not_there_is_refused_by_its_variable(
    tmp_path: Path, missing: str
) -> None:
    made = tls_files(settings_in(tmp_path / "made"), now_ms())
    given = {"certificate": made.certificate, "key": made.key} | {missing: tmp_path / "nowhere.pem"}
    settings = settings_in(tmp_path, tls_certificate=given["certificate"], tls_key=given["key"])
    with pytest.raises(WrongCertificate) as refused:
        server_context(tls_files(settings, now_ms()))
    expected = f"PARTIBUS_TLS_{missing.upper()}: {tmp_path / 'nowhere.pem'}: No such file or directory"
    assert str(refused.value) == expected


@pytest.mark.parametrize("notes_hosts", [True, False])
def test_a_server_name_that_is_not_ascii_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, *, notes_hosts: bool
) -> None:
    """Any client can send one, before it has logged in, as often as it likes."""
    monkeypatch.setattr(sys, "unraisablehook", sys.__unraisablehook__)
    name, wrong = b"localhost", b"\xff" * 9
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname=name.decode())
    with pytest.raises(ssl.SSLWantReadError):
        client.do_handshake()
    hello = outgoing.read()
    assert name in hello
    context = server_context(tls_files(settings_in(tmp_path), now_ms()), notes_hosts=notes_hosts)
    for text, expected in ((name, name.decode() if notes_hosts else ""), (wrong, "")):
        to_server = ssl.MemoryBIO()
        to_server.write(hello.replace(name, text))
        server = context.wrap_bio(to_server, ssl.MemoryBIO(), server_side=True)
        with pytest.raises(ssl.SSLError):  # what the client says next is missing, or its name is wrong
            server.do_handshake()
        assert named_host(server) == expected
    assert capsys.readouterr().err == ""
