"""The relay alone, in front of a small server of ours: what it passes, what it refuses, what it cuts off."""

import asyncio
import ssl
import time
from base64 import b64encode
from datetime import UTC, datetime, timedelta

import pytest
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec

from cofal.config import load
from cofal.deploy import fleet_api
from cofal.deploy.certificates import create_site_key, read_site_key
from cofal.deploy.enrolment import enrol
from cofal.deploy.public_port import PublicPort
from cofal.deploy.server_folder import ServerSettings, create_server
from running_federation import free_ports

PATH = "/v1/fleet/pull-messages"


@pytest.fixture
def folder(tmp_path):
    """A coordinator's folder with one enrolled site, north; short patience."""
    port, control = free_ports(2)
    settings = ServerSettings(
        hosts=["localhost"],
        listen="127.0.0.1",
        port=port,
        control_port=control,
        max_body_mb=25,
        max_connections=4,
        patience=0.5,
        min_rate_kb=1024,
    )
    made = create_server(tmp_path / "server", settings, load("digits"))
    create_site_key(tmp_path / "site.key", tmp_path / "site.pub", "north")
    enrol(made.path, tmp_path / "site.pub", "north")
    return made


def signed(key: ec.EllipticCurvePrivateKey, at: datetime | None = None, **changed: str) -> dict[str, str]:
    """The headers by which a site shows who it is."""
    stamp = (at or datetime.now(UTC)).isoformat()
    signature = key.sign(stamp.encode(), ec.ECDSA(hashes.SHA256()))
    headers = {
        fleet_api.PUBLIC_KEY: b64encode(fleet_api.key_bytes(key.public_key())).decode(),
        fleet_api.TIMESTAMP: stamp,
        fleet_api.SIGNATURE: b64encode(signature).decode(),
    }
    return headers | {name.replace("_", "-"): value for name, value in changed.items()}


def request(headers: dict[str, str], body: bytes = b"", path: str = PATH, method: str = "POST") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "host: localhost", f"content-length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + body


def talk(folder, conversation):
    """Run `conversation(open)` beside the relay and an inner server that answers with what it was sent."""
    settings = folder.settings()
    seen: list[bytes] = []

    async def inside(reader, writer):
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(length)
                seen.append(head + body)
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\nserver: inner\r\n\r\n" % length + body)
        except (EOFError, OSError):
            writer.close()

    async def connect():
        outside = ssl.create_default_context(cafile=str(folder.authority))
        return await asyncio.open_connection(
            "127.0.0.1", settings.port, ssl=outside, server_hostname="localhost", limit=1 << 20
        )

    async def run():
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.load_cert_chain(folder.certificate, folder.key)
        server = await asyncio.start_server(inside, "127.0.0.1", settings.control_port, ssl=tls, limit=1 << 20)
        port = PublicPort(folder)
        await port.start()
        try:
            return await asyncio.wait_for(conversation(connect), 30)
        finally:
            await port.stop()
            server.close()

    return asyncio.run(run()), seen


async def answer(reader) -> tuple[int, bytes]:
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
    return int(head.split()[1]), await reader.readexactly(length)


def ask(folder, *requests: bytes) -> tuple[list[tuple[int, bytes]], list[bytes]]:
    """Each request on a connection of its own."""

    async def conversation(connect):
        answers = []
        for content in requests:
            reader, writer = await connect()
            writer.write(content)
            answers.append(await answer(reader))
            writer.close()
        return answers

    return talk(folder, conversation)


@pytest.fixture
def key(folder):
    return read_site_key(folder.path.parent / "site.key")


def test_a_signed_fleet_request_passes_unchanged_and_connections_are_used_again(folder, key):
    body = bytes(range(256)) * 8192  # 2 MB

    async def conversation(connect):
        reader, writer = await connect()
        answers = []
        for _ in range(3):
            writer.write(request(signed(key, flwr_extra="kept"), body))
            answers.append(await answer(reader))
        writer.close()
        return answers

    answers, seen = talk(folder, conversation)
    assert answers == [(200, body)] * 3
    assert all(b"flwr-extra: kept" in each for each in seen)


def test_nothing_but_a_signed_post_below_the_fleet_path_reaches_the_inside(folder, key):
    good, stranger = signed(key), ec.generate_private_key(ec.SECP384R1())
    stolen = signed(stranger) | {fleet_api.PUBLIC_KEY: good[fleet_api.PUBLIC_KEY]}
    refused = {
        401: [
            request({}),
            request(signed(stranger)),
            request(stolen),
            request(good | {fleet_api.TIMESTAMP: "now"}),
            request(signed(key, datetime.now(UTC) - timedelta(hours=1))),
            request(signed(key, datetime.now(UTC) + timedelta(hours=1))),
        ],
        404: [
            request(good, path=path)
            for path in (
                "/", "/docs", "/openapi.json", "/health", "/v1/control/start-run", "/v1/runtime/acquire-task",
                "/v1/fleet", "/v1/fleet/", "/v1/fleet/../control/start-run", "/v1/fleet/%2e%2e/control/start-run",
                "/v1/fleet//control", "/v1/fleet/pull-messages?x=1", "https://localhost/v1/control/start-run",
                "/v1/fleet/pull-messages/../../control/start-run", "/V1/fleet/pull-messages",
            )
        ],
        405: [request(good, method=method) for method in ("GET", "PUT", "DELETE", "OPTIONS")],
        411: [
            request(good | {"transfer-encoding": "chunked"}).replace(b"content-length: 0\r\n", b"") + b"0\r\n\r\n",
            request(good).replace(b"content-length: 0\r\n", b""),
        ],
        413: [request(good).replace(b"content-length: 0", b"content-length: %d" % (26 << 20))],
        431: [request(good | {"x": "y" * 20_000})],
        400: [
            b"nonsense\r\n\r\n",
            request(good).replace(b"content-length: 0", b"content-length: 0\r\ncontent-length: 5"),
            request(good).replace(b"content-length: 0", b"content-length: -1"),
            request(good).replace(b" HTTP/1.1", b" HTTP/1.1\r\nbad header"),
        ],
    }  # fmt: skip
    flat = [(status, each) for status, several in refused.items() for each in several]
    answers, seen = ask(folder, *(each for _, each in flat))
    assert [status for status, _ in answers] == [status for status, _ in flat]
    assert not seen


def test_a_site_is_told_why_it_is_refused(folder, key):
    late = request(signed(key, datetime.now(UTC) - timedelta(hours=1)))
    stranger = request(signed(ec.generate_private_key(ec.SECP384R1())))
    ((_, clock), (_, unknown)), _ = ask(folder, late, stranger)
    assert b"clock is 3600 s behind" in clock
    assert b"not enrolled" in unknown


def test_a_removed_key_is_shut_out_and_a_new_one_let_in_without_a_restart(folder, key):
    async def conversation(connect):
        statuses = []
        for step in ("enrolled", "removed", "again"):
            file = folder.enrolled / "north.pub"
            if step == "removed":
                kept = file.read_bytes()
                file.unlink()
            elif step == "again":
                file.write_bytes(kept)
            reader, writer = await connect()
            writer.write(request(signed(key)))
            statuses.append((await answer(reader))[0])
            writer.close()
        return statuses

    assert talk(folder, conversation)[0] == [200, 401, 200]


@pytest.mark.parametrize("part", ["nothing", "half a head", "half a body"])
def test_a_silent_or_slow_client_is_cut_off(folder, key, part):
    whole = request(signed(key), b"x" * 1000)
    content = {"nothing": b"P", "half a head": whole[:60], "half a body": whole[:-500]}[part]

    async def conversation(connect):
        reader, writer = await connect()
        began = time.monotonic()
        for position in range(len(content)):  # byte by byte at the end, as slow-loris tools do
            if position > len(content) - 3:
                await asyncio.sleep(0.1)
            writer.write(content[position : position + 1])
        assert await reader.read(100) == b""
        return time.monotonic() - began

    seconds, seen = talk(folder, conversation)
    assert seconds < 5
    assert not seen


def test_more_connections_than_allowed_are_closed(folder, key):
    async def conversation(connect):
        opened = [await connect() for _ in range(4)]
        extra_reader, _ = await connect()
        gone = await extra_reader.read(1)
        reader, writer = opened[0]
        writer.write(request(signed(key), b"still served"))
        return gone, await answer(reader)

    (gone, served), _ = talk(folder, conversation)
    assert gone == b""
    assert served == (200, b"still served")


def test_plain_http_gets_no_answer(folder):
    async def conversation(connect):
        reader, writer = await asyncio.open_connection("127.0.0.1", folder.settings().port)
        writer.write(request({}))
        try:
            return await reader.read(1000)
        except ConnectionError:
            return b""

    content, seen = talk(folder, conversation)
    assert b"HTTP" not in content
    assert not seen


def test_a_site_cannot_answer_in_the_name_of_another(folder, key):
    from cofal.deploy.flwr_private import Node, PushMessagesRequest

    def pushed(source: int) -> bytes:
        made = PushMessagesRequest(node=Node(node_id=7))
        made.messages_list.add().metadata.src_node_id = source
        return request(signed(key), made.SerializeToString(), path="/v1/fleet/push-messages")

    too_long = pushed(7).replace(b"content-length: ", b"content-length: 9999999")
    answers, seen = ask(folder, pushed(7), pushed(8), pushed(7).replace(b"\x08\x07", b"\xff\xff"), too_long)
    assert [status for status, _ in answers] == [200, 403, 403, 413]
    assert len(seen) == 1
