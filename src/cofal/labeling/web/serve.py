"""Start the page of a site: where it listens, whom it lets in, and the demands on an address that others can reach."""

from __future__ import annotations

import errno
import getpass
import ipaddress
import socket
from pathlib import Path

import uvicorn
from cryptography import x509

from cofal.errors import UserError
from cofal.federation.site import open_site
from cofal.labeling.store import LabelStore
from cofal.labeling.web.annotators import Annotators
from cofal.labeling.web.app import create_app
from cofal.labeling.web.desk import Desk
from cofal.labeling.web.pictures import Pictures
from cofal.labeling.web.sessions import Sessions

LOOPBACK = "127.0.0.1"
_LOOPBACK_NAMES = {"127.0.0.1", "localhost", "::1"}


class Page:
    """A site's page, bound to its address and not yet serving; `url` is where to open it."""

    def __init__(
        self,
        folder: Path,
        *,
        host: str = LOOPBACK,
        port: int = 0,
        certificate: Path | None = None,
        private_key: Path | None = None,
        overlap: float | None = None,
        originals: Path | None = None,
    ):
        """overlap: share of the images to ask of two annotators; None leaves it as it was.

        originals: folder of the files that the site was made from, to show them in full size.
        """
        if originals is not None and not originals.is_dir():
            raise UserError(f"--images {originals} is no folder; give the one that cofal client init was given")
        if (certificate is None) != (private_key is None):
            raise UserError("TLS needs both --cert and --key; give the missing one")
        annotators = Annotators(folder)
        if not _is_loopback(host):
            _check_reachable(host, folder, certificate is not None, annotators)
        site = open_site(folder)
        if not site.train.classes:
            raise UserError(
                f"site {site.name} has no class names, so there is nothing to choose from; give a class list"
            )
        store = site.store
        if store is None:
            raise UserError(
                f"site {site.name} is simulated, its data set answers; make one to label with cofal client init"
            )
        if overlap is not None:
            store.set_overlap(overlap)
        known = frozenset(site.settings.known_labels)
        sessions = Sessions(folder, annotators, getpass.getuser() if _is_loopback(host) else None)
        pictures = Pictures(
            site.train, sessions.image_key, lambda sample: sample in known or _was_asked(store, sample), originals
        )
        desk = Desk(site, store, pictures)
        names = set(_LOOPBACK_NAMES) if _is_loopback(host) else set()
        names |= _names_in(certificate) if certificate else set()
        self._socket = _bind(host, port)
        port = self._socket.getsockname()[1]
        self.app = create_app(desk, sessions, names=names, port=port, tls=certificate is not None)
        shown = next(iter(sorted(names - _LOOPBACK_NAMES)), host) if certificate else host
        self.url = f"{'https' if certificate else 'http'}://{_in_url(shown)}:{port}/"
        if not sessions.by_token:
            self.url += f"?key={sessions.link_key}"
        self.desk, self.store = desk, store
        self._server = uvicorn.Server(
            uvicorn.Config(
                self.app,
                log_level="warning",
                access_log=False,  # would hold the start link's key
                server_header=False,
                proxy_headers=False,  # an address out of a header would get around the brake on logins
                lifespan="off",
                ws="none",
                timeout_graceful_shutdown=3,
                ssl_certfile=certificate,
                ssl_keyfile=private_key,
            )
        )

    def serve(self) -> None:
        """Answer requests until the process is told to end, or `stop` is called."""
        self._server.run(sockets=[self._socket])

    def stop(self) -> None:
        """End `serve` in another thread, once what is under way is answered."""
        self._server.should_exit = True


def _check_reachable(host: str, folder: Path, tls: bool, annotators: Annotators) -> None:
    if not tls:
        raise UserError(f"--host {host} can be reached by others: give --cert and --key for TLS, or leave --host out")
    if not annotators.names():
        raise UserError(
            f"--host {host} can be reached by others: register who may label, cofal client annotator add NAME {folder}"
        )


def _was_asked(store: LabelStore, sample: str) -> bool:
    try:
        store.query(sample)
    except UserError:
        return False
    return True


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _names_in(certificate: Path) -> set[str]:
    """The host names and addresses the certificate is for: what a browser accepts it under."""
    try:
        loaded = x509.load_pem_x509_certificate(certificate.read_bytes())
        names = loaded.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read the certificate {certificate}: {error}; give a PEM file") from None
    except x509.ExtensionNotFound:
        raise UserError(f"{certificate} names no host (subjectAltName); browsers refuse it, make another") from None
    return {name.lower() for name in names.get_values_for_type(x509.DNSName)} | {
        str(address) for address in names.get_values_for_type(x509.IPAddress)
    }


def _bind(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(address)
        listening.listen(128)  # two servers at one port both bind; only one may listen
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise UserError(f"port {port} is in use; choose another with --port (0 takes any free one)") from None
        raise UserError(f"cannot listen at {host}:{port}: {error.strerror}; choose another --host or --port") from None
    return listening


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
