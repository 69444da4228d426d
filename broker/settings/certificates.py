"""Certificates: the given one, or one made in the data folder and signed by its own authority, which clients
can trust.

Most administration clients insist on TLS, so a fresh broker needs a certificate. `tls/ca.pem` is the file to
trust. It is made once and outlives the server's certificate, which is made again when it is about to expire
or the machine's names change. Every file is durable before its name appears. Only the owner can read private
keys.
"""

from __future__ import annotations

import datetime
import ipaddress
import os
import socket
import ssl
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from broker.settings.setting_types import variable_of
from broker.settings.settings import Settings

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

CA_DAYS, SERVER_DAYS, RENEW_DAYS = 3650, 397, 30
"""A server's certificate lasts as long as browsers accept, and a start within its last 30 days renews it."""
_CLOCK_SKEW = datetime.timedelta(days=1)


class WrongCertificate(ValueError):
    """The certificate or key that the settings name cannot be used."""


@dataclass(slots=True, frozen=True)
class TlsFiles:
    """The files that a TLS server needs, and the one that its clients should trust."""

    certificate: Path
    key: Path
    authority: Path | None
    """The generated authority's certificate; None if the server's certificate was given."""


def tls_files(settings: Settings, now_ms: int) -> TlsFiles:
    """The files that the settings name, or generated ones, made if they are missing, about to expire or for
    other names."""
    if settings.tls_certificate is not None and settings.tls_key is not None:
        return TlsFiles(settings.tls_certificate, settings.tls_key, None)
    return _generated(
        settings.data_dir / "tls",
        server_names(settings.host, settings.certificate_names),
        datetime.datetime.fromtimestamp(now_ms / 1000, datetime.UTC),
    )


def server_context(files: TlsFiles, *, notes_hosts: bool = True) -> ssl.SSLContext:
    """A server's context for TLS 1.2 and later. With `notes_hosts`, `named_host` knows what clients name.
    Raises WrongCertificate with the file, the variable that names it, and the reason."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if notes_hosts:
        sys.unraisablehook = _report_unless_a_wrong_name
        context.sni_callback = _note_host
    try:
        context.load_cert_chain(files.certificate, files.key)
    except (OSError, ssl.SSLError) as error:
        names = _names(files)
        for name, path in zip(names, (files.certificate, files.key), strict=True):
            try:
                path.read_bytes()  # the error above does not say which one it is
            except OSError as unreadable:
                raise WrongCertificate(f"{name}{path}: {unreadable.strerror}") from error
        raise WrongCertificate(
            f"{names[0]}{files.certificate}, {names[1]}{files.key}: not a certificate with its key: {error}"
        ) from error
    return context


def _names(files: TlsFiles) -> tuple[str, str]:
    """The variables that name the two files, as the beginning of a text; nothing for generated files."""
    if files.authority is not None:
        return "", ""
    return f"{variable_of('tls_certificate')}: ", f"{variable_of('tls_key')}: "


def _note_host(tls: ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
    tls.named_host = name or ""  # type: ignore[attr-defined]  # ssl keeps the name to itself


def _report_unless_a_wrong_name(error: UnraisableHookArgs) -> None:
    """Report an error that nobody can handle, as Python does. Python ends a handshake whose server name is
    not ASCII, and would also write a traceback for each: any client could fill the log."""
    if not (isinstance(error.exc_value, UnicodeDecodeError) and isinstance(error.object, bytes)):
        sys.__unraisablehook__(error)


def named_host(tls: object) -> str:
    """The server name that a client gave in its handshake (RFC 6066 3); "" if it gave none, or the connection
    is not over TLS."""
    name: str = getattr(tls, "named_host", "")
    return name


def certificate_names(files: TlsFiles) -> tuple[str, ...]:
    """The DNS names that the server's certificate is for, wildcards included. Raises WrongCertificate."""
    try:
        certificate = x509.load_pem_x509_certificate(files.certificate.read_bytes())
        names = certificate.extensions.get_extension_for_class(
            x509.SubjectAlternativeName
        ).value.get_values_for_type(x509.DNSName)
    except x509.ExtensionNotFound:  # clients no longer look at the common name (RFC 9525)
        return ()
    except (OSError, ValueError) as error:
        raise WrongCertificate(f"{files.certificate}: its names cannot be read: {error}") from error
    return tuple(names)


def server_names(host: str, more: Iterable[str] = ()) -> list[str]:
    """The names and addresses under which clients may reach this machine."""
    return list(dict.fromkeys(["localhost", "127.0.0.1", "::1", socket.gethostname(), host, *more]))


def _generated(folder: Path, names: list[str], now: datetime.datetime) -> TlsFiles:
    folder.mkdir(parents=True, exist_ok=True)
    files = TlsFiles(folder / "server.pem", folder / "server-key.pem", folder / "ca.pem")
    authority = _load(folder / "ca.pem", folder / "ca-key.pem")
    if authority is None or not _lasts(authority[0], now):
        authority = _make_authority(now)
        _write(folder / "ca-key.pem", _key_bytes(authority[1]), 0o600)
        _write(folder / "ca.pem", authority[0].public_bytes(serialization.Encoding.PEM), 0o644)
    server = _load(files.certificate, files.key)
    if (
        server is None
        or not _lasts(server[0], now)
        or not _is_for(server[0], names)
        or server[0].issuer != authority[0].subject
    ):
        certificate, key = _make_server(*authority, names, now)
        # The key first: a crash in between leaves a pair that does not match, and `_load` ignores such a
        # pair.
        _write(files.key, _key_bytes(key), 0o600)
        chain = certificate.public_bytes(serialization.Encoding.PEM) + authority[0].public_bytes(
            serialization.Encoding.PEM
        )
        _write(files.certificate, chain, 0o644)
    return files


def _load(certificate: Path, key: Path) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None:
    """The certificate and its key, or None if either cannot be read or they do not match."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        private = serialization.load_pem_private_key(key.read_bytes(), None)
        if not isinstance(private, ec.EllipticCurvePrivateKey) or private.public_key() != loaded.public_key():
            return None
    except (OSError, ValueError, UnsupportedAlgorithm):  # a damaged file may name any algorithm
        return None
    return loaded, private


def _lasts(certificate: x509.Certificate, now: datetime.datetime) -> bool:
    return (
        certificate.not_valid_before_utc
        <= now
        < certificate.not_valid_after_utc - datetime.timedelta(days=RENEW_DAYS)
    )


def _is_for(certificate: x509.Certificate, names: list[str]) -> bool:
    return certificate.extensions.get_extension_for_class(
        x509.SubjectAlternativeName
    ).value == _alternative_names(names)


def _alternative_names(names: list[str]) -> x509.SubjectAlternativeName:
    general: list[x509.GeneralName] = []
    for name in names:
        try:
            general.append(x509.IPAddress(ipaddress.ip_address(name)))
        except ValueError:
            general.append(x509.DNSName(name))
    return x509.SubjectAlternativeName(general)


def _make_authority(now: datetime.datetime) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    # The name contains the serial, so that two authorities on one machine are not mistaken for each other.
    serial = x509.random_serial_number()
    name = x509.Name(
        [x509.NameAttribute(NameOID.COMMON_NAME, f"Partibus development authority {serial % 0xFFFFFFFF:08x}")]
    )
    builder = _builder(name, name, key.public_key(), key.public_key(), now, CA_DAYS, serial)
    builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
    return builder.sign(key, hashes.SHA256()), key


def _make_server(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    names: list[str],
    now: datetime.datetime,
) -> tuple[x509.Certificate, ec.EllipticCurvePrivateKey]:
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "localhost")])
    builder = _builder(
        name,
        authority.subject,
        key.public_key(),
        authority_key.public_key(),
        now,
        SERVER_DAYS,
        x509.random_serial_number(),
    )
    builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
    builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
    builder = builder.add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
    builder = builder.add_extension(_alternative_names(names), critical=False)
    return builder.sign(authority_key, hashes.SHA256()), key


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePublicKey,
    issuer_key: ec.EllipticCurvePublicKey,
    now: datetime.datetime,
    days: int,
    serial: int,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(serial)
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key), critical=False)
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_bytes(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _write(path: Path, content: bytes, mode: int) -> None:
    """Write a file atomically and durably."""
    handle, temporary = tempfile.mkstemp(
        dir=path.parent, prefix=f".{path.name}."
    )  # only the owner can read it
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
