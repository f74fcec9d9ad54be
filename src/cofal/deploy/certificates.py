"""The federation's own certificate authority, the server's certificate, and the key pairs of the sites."""

from __future__ import annotations

import datetime
import ipaddress
import os
import stat
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from cofal.errors import UserError
from cofal.files import atomic, write_bytes

_AUTHORITY_DAYS, _SERVER_DAYS = 3650, 825
_BACKDATE = datetime.timedelta(hours=2)  # a site whose clock is late must not refuse a new certificate
LOOPBACK = ("localhost", "127.0.0.1", "::1")  # the SuperLink behind the public port is reached by these


def write_secret(path: Path, content: bytes) -> None:
    """A new file that only its owner may read, from the first byte on; an existing one is never overwritten."""
    if path.exists():
        raise UserError(f"{path} exists; a key is never overwritten, move it away first")
    with atomic(path) as temporary:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)


def create_authority(certificate: Path, key: Path) -> None:
    """A certificate authority for this federation alone."""
    private = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "cofal federation")])
    now = datetime.datetime.now(datetime.UTC)
    identity = x509.SubjectKeyIdentifier.from_public_key(private.public_key())
    made = (
        _builder(name, name, private.public_key(), now, _AUTHORITY_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign_certificates=True), critical=True)
        .add_extension(identity, critical=False)
        .sign(private, hashes.SHA384())
    )
    write_secret(key, _pem(private))
    write_bytes(certificate, made.public_bytes(serialization.Encoding.PEM))


def create_server_certificate(
    certificate: Path,
    key: Path,
    authority: Path,
    authority_key: Path,
    hosts: Sequence[str],
    *,
    start: datetime.datetime | None = None,
    days: int = _SERVER_DAYS,
) -> None:
    """A certificate for `hosts` (names or addresses) and this machine's loopback, signed by the authority."""
    issuer = x509.load_pem_x509_certificate(authority.read_bytes())
    signer = serialization.load_pem_private_key(authority_key.read_bytes(), password=None)
    if not isinstance(signer, ec.EllipticCurvePrivateKey):
        raise UserError(f"{authority_key} is not the authority's elliptic curve key")
    private = ec.generate_private_key(ec.SECP384R1())
    names = {name: _general_name(name) for name in (*hosts, *LOOPBACK)}
    short = next(name for name in names if len(name) <= 64)  # all that X.509 takes; the names that count come below
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, short)])
    made = (
        _builder(subject, issuer.subject, private.public_key(), start or datetime.datetime.now(datetime.UTC), days)
        .add_extension(x509.SubjectAlternativeName(list(names.values())), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()),
            critical=False,
        )
        .sign(signer, hashes.SHA384())
    )
    write_secret(key, _pem(private))
    write_bytes(certificate, made.public_bytes(serialization.Encoding.PEM))


def expiry(certificate: Path) -> datetime.datetime:
    return x509.load_pem_x509_certificate(certificate.read_bytes()).not_valid_after_utc


def create_site_key(private: Path, public: Path, comment: str) -> None:
    """An EC P-384 key pair in OpenSSH's format, as `ssh-keygen -t ecdsa -b 384` makes."""
    key = ec.generate_private_key(ec.SECP384R1())
    plain = serialization.NoEncryption()
    write_secret(private, key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, plain))
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    write_bytes(public, line + b" " + comment.encode() + b"\n")


def read_site_key(path: Path) -> ec.EllipticCurvePrivateKey:
    """A site's private key; one that others on the machine may read is refused."""
    try:
        mode = path.stat().st_mode
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the site's key {path}: {error.strerror}; check server.key in site.toml") from None
    if stat.S_IMODE(mode) & 0o077:
        raise UserError(f"{path} may be read by others (mode {stat.S_IMODE(mode):o}); run chmod 600 on it")
    try:
        key = serialization.load_ssh_private_key(content, password=None)
    except ValueError:
        raise UserError(f"{path} is no OpenSSH private key; make one with ssh-keygen -t ecdsa -b 384") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise UserError(f"{path} is not an elliptic curve key; make one with ssh-keygen -t ecdsa -b 384")
    return key


def read_public_key(path: Path) -> ec.EllipticCurvePublicKey:
    """A site's public key file (one OpenSSH line)."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; give the site.pub that the site sent") from None
    if b"PRIVATE" in content:
        raise UserError(f"{path} is a private key, which must not leave its site; ask for site.pub and make a new pair")
    try:
        key = serialization.load_ssh_public_key(content)
    except ValueError:
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP384R1):
        raise UserError(f"{path} is no ecdsa-sha2-nistp384 public key; give the site.pub that cofal client init made")
    return key


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, start: datetime.datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(start - _BACKDATE)
        .not_valid_after(start + datetime.timedelta(days=days))
    )


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign_certificates,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    labels = host.split(".")
    if not host.isascii() or len(host) > 253 or not all(_is_label(label) for label in labels):
        raise UserError(f"--host {host!r} is neither a host name nor an IP address; leave out port and scheme")
    return x509.DNSName(host)


def _is_label(label: str) -> bool:
    return 0 < len(label) <= 63 and all(c.isalnum() or c == "-" for c in label) and label.strip("-") == label


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
