"""Attempts on a running federation: who gets in, what a port tells, what a bad coordinator can make a site do."""

import json
import shutil
import socket
import ssl
import subprocess
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from cofal.deploy import certificates, flower
from cofal.deploy.fleet_api import FleetConnection, NotAdmitted, Unreachable
from cofal.deploy.server_folder import CONNECTION
from cofal.deploy.serving import run_server
from cofal.errors import UserError
from cofal.privacy.ledger import FILE, read_ledger
from running_federation import processes_of, wait_until

HOSTILE = Path(__file__).with_name("hostile_app")


def connection(federation, key: Path, authority: Path | None = None) -> FleetConnection:
    text = (authority or federation.folder.authority).read_text()
    return FleetConnection(f"localhost:{federation.port}", text, certificates.read_site_key(key), most=1 << 20)


def test_an_unknown_key_is_refused_and_says_so(federation, tmp_path):
    certificates.create_site_key(tmp_path / "key", tmp_path / "pub", "stranger")
    with pytest.raises(NotAdmitted, match="not enrolled"):
        connection(federation, tmp_path / "key").activate()


def test_a_request_without_a_key_is_refused(federation):
    assert b" 401 " in exchange(
        federation, b"POST /v1/fleet/activate-node HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
    )


def test_a_site_does_not_talk_to_a_server_of_another_authority(federation, tmp_path):
    certificates.create_authority(tmp_path / "ca.crt", tmp_path / "ca.key")
    known = federation.base / federation.names[0] / "site.key"
    with pytest.raises(Unreachable, match=r"certificate of .* is refused"):
        connection(federation, known, tmp_path / "ca.crt").activate()


def test_a_key_that_others_may_read_is_not_used(federation, tmp_path):
    certificates.create_site_key(tmp_path / "key", tmp_path / "pub", "open")
    (tmp_path / "key").chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        connection(federation, tmp_path / "key")


def test_plain_http_is_refused(federation):
    with socket.create_connection(("127.0.0.1", federation.port), timeout=10) as plain:
        plain.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
        with suppress(ConnectionError):
            assert b"HTTP" not in plain.recv(1000)


def exchange(federation, content: bytes) -> bytes:
    """The first bytes that the public port answers to `content` over TLS."""
    context = ssl.create_default_context(cafile=str(federation.folder.authority))
    with (
        socket.create_connection(("127.0.0.1", federation.port), timeout=10) as plain,
        context.wrap_socket(plain, server_hostname="localhost") as secured,
    ):
        secured.sendall(content)
        return secured.recv(1000)


def test_no_route_of_the_superlink_but_the_fleet_s_is_reachable(federation):
    """The routes are taken from flwr itself, so that one added in a later version is scanned as well."""
    from flwr.superlink.routers.control import router as control
    from flwr.superlink.routers.fleet.router import router as fleet

    paths = {route.path for route in control.routes} | {"/docs", "/openapi.json", "/health", "/", "/v1/runtime/x"}
    paths = {path if path.startswith("/") else f"/{path}" for path in paths}
    assert len(paths) > 10
    for path in sorted(paths):
        for method in ("GET", "POST"):
            head = f"{method} {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
            assert b" 404 " in exchange(federation, head.encode())[:20], path
    for route in fleet.routes:
        head = f"POST {route.path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 0\r\n\r\n"
        assert b" 401 " in exchange(federation, head.encode())[:20], route.path


def test_flower_s_own_command_cannot_start_a_run_through_the_public_port(federation, tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    text = (
        f'[superlink.x]\naddress = "localhost:{federation.port}"\nroot-certificates = "{federation.folder.authority}"\n'
    )
    (home / "config.toml").write_text(text)
    environment = {**flower.environment(federation.folder), "FLWR_HOME": str(home)}
    done = subprocess.run(
        [flower.program("flwr"), "run", str(HOSTILE), "x"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "Successfully" not in done.stdout


def test_the_server_listens_on_its_public_port_and_on_loopback_alone(federation):
    """All sockets of all its processes; Flower's own port on 127.0.0.1."""
    settings = federation.folder.settings()
    sockets = set()
    for process in processes_of(str(federation.folder.path)):
        for entry in Path(f"/proc/{process}/fd").iterdir():
            try:
                target = str(entry.readlink())
            except OSError:
                continue
            if target.startswith("socket:["):
                sockets.add(target[8:-1])
    listening = set()
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in sockets:
                address, port = fields[1].split(":")
                listening.add((address, int(port, 16)))
    assert listening == {("0100007F", settings.port), ("0100007F", settings.control_port)}


def test_secrets_are_readable_by_their_owner_alone_and_never_in_a_log(federation):
    folder = federation.folder
    secrets = [folder.key, folder.authority_key, folder.secret, folder.database]
    secrets += [federation.base / name / "site.key" for name in federation.names]
    for file in secrets:
        assert file.stat().st_mode & 0o077 == 0, file
    for log in federation.base.glob("*.log"):
        assert "PRIVATE KEY" not in log.read_text(errors="replace")


def test_a_coordinator_cannot_make_a_site_run_its_code_or_send_what_its_policy_forbids(federation, tmp_path):
    """A hostile app, started on the server's own machine: it ships client code, and asks for embeddings and ids."""
    out = tmp_path / "answers.json"
    shutil.copytree(HOSTILE, tmp_path / "app")
    done = subprocess.run(
        [flower.program("flwr"), "run", str(tmp_path / "app"), CONNECTION, "-c", f'out="{out}"'],
        env=flower.environment(federation.folder),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    wait_until(out.exists, 60, f"the hostile run's answers; see {federation.server.log}")
    answers = json.loads(out.read_text())
    assert len(answers) == 7 * len(federation.names)
    assert not Path(f"{out}.owned").exists()
    for kind, config, told in answers:
        if kind == "query.describe":
            assert "owned" not in told["config"]  # the installed package answered
        else:
            assert told.get("code"), (kind, told)
        if kind == "query.embed" and config["share"] == "raw":
            assert "refuses to send raw" in told["reason"]
        if kind == "query.pick":
            assert "refuses to send ids" in told["reason"]
    assert federation.server.said("get-fab") == 0
    refused = [
        line["kind"] for line in read_ledger(federation.base / federation.names[0] / FILE).entries if "refused" in line
    ]
    assert {"raw", "ids"} <= set(refused)


def test_an_expired_certificate_is_refused_by_both_sides(make_federation):
    made = make_federation(sites=1, per_site=20)
    folder = made.folder
    folder.key.unlink()
    certificates.create_server_certificate(
        folder.certificate,
        folder.key,
        folder.authority,
        folder.authority_key,
        ["localhost"],
        start=datetime.now(UTC) - timedelta(days=10),
        days=9,
    )
    with pytest.raises(UserError, match="has expired"):
        run_server(folder.path)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.certificate, folder.key)
    with socket.create_server(("127.0.0.1", made.port)) as listener:

        def accept():
            plain, _ = listener.accept()
            try:
                context.wrap_socket(plain, server_side=True)
            except OSError:
                plain.close()

        threading.Thread(target=accept, daemon=True).start()
        with pytest.raises(Unreachable, match="expired"):
            connection(made, made.base / made.names[0] / "site.key").activate()
