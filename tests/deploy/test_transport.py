"""httpx over plain connections, against a server over TLS that does what it is told, also the wrong thing."""

import socket
import ssl
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import pytest

from cofal.deploy.certificates import create_authority, create_server_certificate
from cofal.deploy.transport import PlainTransport

MOST = 1 << 20
END = b"the end"
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\nx-it: yes\r\n\r\nwhole"


@pytest.fixture
def tls(tmp_path):
    """A server's context, and one that trusts it."""
    create_authority(tmp_path / "ca.crt", tmp_path / "ca.key")
    create_server_certificate(
        tmp_path / "server.pem", tmp_path / "server.key", tmp_path / "ca.crt", tmp_path / "ca.key", ["localhost"]
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    return server, ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))


class Server:
    """Gives every request the next answer of a list; END after an answer is the end of the connection, unannounced."""

    def __init__(self, context: ssl.SSLContext, answers: list[bytes]):
        self.answers, self.seen, self.connections = list(answers), [], 0
        self.ended = threading.Event()
        self._context, self._socket = context, socket.create_server(("localhost", 0))
        self.address = f"localhost:{self._socket.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                plain, _ = self._socket.accept()
            except OSError:
                return
            self.connections += 1
            threading.Thread(target=self._serve, args=(plain,), daemon=True).start()

    def _serve(self, plain: socket.socket) -> None:
        try:
            with self._context.wrap_socket(plain, server_side=True) as connection, connection.makefile("rb") as file:
                while head := file.readline():
                    length = 0
                    while (line := file.readline()) != b"\r\n":
                        head += line
                        if line.lower().startswith(b"content-length:"):
                            length = int(line.split(b":")[1])
                    self.seen.append((head, file.read(length)))
                    answer = self.answers.pop(0)
                    connection.sendall(answer)
                    if self.answers[:1] == [END]:
                        del self.answers[0]
                        return
        except OSError:
            pass
        finally:
            plain.close()
            self.ended.set()

    def close(self) -> None:
        self._socket.close()


@contextmanager
def talking(tls, *answers, timeout=5.0):
    server = Server(tls[0], list(answers))
    transport = PlainTransport(server.address, tls[1], most=MOST)
    with httpx.Client(transport=transport, base_url=f"https://{server.address}", timeout=timeout) as client:
        yield server, client
    server.close()


def test_a_request_arrives_as_it_was_made_and_its_connection_is_used_again(tls):
    with talking(tls, PLAIN, PLAIN) as (server, client):
        body = bytes(range(256)) * 3000
        answer = client.post("/some/path?x=1", content=body, headers={"x-mine": "value"})
        assert (answer.status_code, answer.content, answer.headers["x-it"]) == (200, b"whole", "yes")
        assert client.post("/again").content == b"whole"
        head, arrived = server.seen[0]
        assert head.startswith(b"POST /some/path?x=1 HTTP/1.1\r\n")
        assert b"x-mine: value" in head
        assert head.count(b"\r\nHost:") == 1
        assert head.count(b"\r\nAccept-Encoding:") == 1
        assert arrived == body
        assert server.connections == 1


def test_pieces_of_unknown_number_are_put_together(tls):
    pieces = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n3\r\nwho\r\n2\r\nle\r\n0\r\n\r\n"
    with talking(tls, pieces, PLAIN) as (server, client):
        assert client.post("/").content == b"whole"
        assert client.post("/").content == b"whole"
        assert server.connections == 1


def test_a_connection_that_the_server_closes_after_an_answer_is_not_used_again(tls):
    with talking(tls, PLAIN.replace(b"x-it: yes", b"connection: close"), END, PLAIN) as (server, client):
        assert client.post("/").content == b"whole"
        assert client.post("/").content == b"whole"
        assert server.connections == 2


def test_a_connection_that_was_closed_while_nobody_looked_is_not_used_again(tls):
    with talking(tls, PLAIN, END, PLAIN) as (server, client):
        assert client.post("/").content == b"whole"
        assert server.ended.wait(5)
        assert client.post("/").content == b"whole"
        assert server.connections == 2


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (1 << 40),
        b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (MOST + 1) + b"x" * (MOST + 1),
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + b"80000\r\n" + b"x" * (1 << 19) + b"\r\n80000\r\n"
        + b"x" * (1 << 19) + b"\r\n1\r\nx\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n" + b"x" * (MOST + 1),
    ],
    ids=["announced", "sent", "in pieces", "until the end"],
)  # fmt: skip
def test_more_than_may_come_is_refused(tls, answer):
    with talking(tls, answer, END) as (_, client), pytest.raises(httpx.RemoteProtocolError, match="more than 1 MB"):
        client.post("/")


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 50\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\ntransfer-encoding: chunked\r\n\r\n9\r\nhalf",
        b"no HTTP at all\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\nx: " + b"x" * 70_000 + b"\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + b"x: y\r\n" * 200 + b"\r\n",
    ],
    ids=["nothing", "half", "half in pieces", "rubbish", "a long header", "many headers"],
)
def test_half_an_answer_is_an_error_of_transport_and_says_nothing_of_tls(tls, answer):
    """Flower takes an error whose text has "ssl" or "tls" in it for a certificate that is refused, and gives up."""
    with talking(tls, answer, END) as (_, client):
        with pytest.raises((httpx.RemoteProtocolError, httpx.ReadError)) as error:
            client.post("/")
        assert not any(word in str(error.value).lower() for word in ("ssl", "tls", "certificate"))


def test_silence_is_a_timeout(tls):
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nwho"
    with talking(tls, half, timeout=0.3) as (_, client), pytest.raises(httpx.ReadTimeout):
        client.post("/")


def test_a_certificate_that_is_not_trusted_is_named(tls):
    server = Server(tls[0], [PLAIN])
    transport = PlainTransport(server.address, ssl.create_default_context(), most=MOST)
    client = httpx.Client(transport=transport, base_url=f"https://{server.address}")
    with client, pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        client.post("/")
    server.close()


def test_nobody_there_is_an_error_of_connecting(tls):
    with socket.create_server(("localhost", 0)) as taken:
        address = f"localhost:{taken.getsockname()[1]}"
    client = httpx.Client(transport=PlainTransport(address, tls[1], most=MOST))
    with client, pytest.raises(httpx.ConnectError):
        client.post(f"https://{address}/")


def test_another_server_is_not_spoken_to(tls):
    with talking(tls, PLAIN) as (server, client):
        for other in ("https://localhost:1/", f"http://{server.address}/", "https://elsewhere/"):
            with pytest.raises(httpx.UnsupportedProtocol):
                client.post(other)
        assert server.connections == 0


def test_threads_have_connections_of_their_own(tls):
    with talking(tls, *[PLAIN] * 40) as (server, client), ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda number: client.post(f"/{number}").content, range(40)))
        assert answers == [b"whole"] * 40
        assert 1 <= server.connections <= 4
