# SPDX-License-Identifier: Apache-2.0
"""Requests over kept connections, against sockets that say what a test wants."""

import socket
import ssl
import threading
from collections.abc import Iterator

import pytest

from aliquot_agent.plainhttp import PlainHttp

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n{\r\n1\r\n}\r\n0\r\n\r\n"
LAST = OK.replace(b"OK\r\n", b"OK\r\nConnection: close\r\n")
OLD = b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\n{}"
NOTED = b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK
EXTENDED = (
    b"HTTP/1.1 404 Not Found\r\ntransfer-encoding:chunked\r\n\r\n"
    b"2;name=value\r\n{}\r\n0\r\nTrailer: x\r\n\r\n"
)
TOO_MUCH = OK + b"HTTP/1.1"
SILENCE = b""


class Server:
    """Answers each connection with the answers of its own, then closes it."""

    def __init__(self, *connections: tuple[bytes, ...]) -> None:
        self.asked: list[bytes] = []
        self.accepted = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._thread = threading.Thread(target=self._serve, args=(connections,), daemon=True)
        self._thread.start()
        self.http = PlainHttp(
            server=f"http://127.0.0.1:{self._listener.getsockname()[1]}/prefix/",
            tls=ssl.create_default_context,
            headers=lambda: {"Authorization": f"Bearer {len(self.asked)}"},
            timeout_s=10,
        )

    def _serve(self, connections: tuple[tuple[bytes, ...], ...]) -> None:
        for answers in connections:
            connection, _ = self._listener.accept()
            self.accepted += 1
            with connection:
                for answer in answers:
                    self.asked.append(connection.recv(4096))
                    connection.sendall(answer)

    def stop(self) -> None:
        self._thread.join(10)
        assert not self._thread.is_alive(), "nobody came for all of the answers"
        self._listener.close()


@pytest.fixture
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    made = Server(*request.param)
    yield made
    made.stop()


@pytest.mark.parametrize("server", [[(OK, CHUNKED, LAST)]], indirect=True)
def test_a_connection_is_kept_and_each_request_has_the_token_of_its_time(server: Server) -> None:
    assert [server.http.get("/a") for _ in range(3)] == [(200, b"{}")] * 3
    assert server.accepted == 1
    assert all(each.startswith(b"GET /prefix/a HTTP/1.1\r\n") for each in server.asked)
    assert [b"Bearer %d" % number in each for number, each in enumerate(server.asked)] == [True] * 3


@pytest.mark.parametrize("server", [[(OK, OK)]], indirect=True)
def test_a_change_is_sent_with_its_length_and_kind(server: Server) -> None:
    assert server.http.get("/a") == (200, b"{}")
    assert server.http.patch("/a?b=c", b'{"x": 1}', content_type="application/x+yaml") == (200, b"{}")
    head, _, body = server.asked[1].partition(b"\r\n\r\n")
    assert head.startswith(b"PATCH /prefix/a?b=c HTTP/1.1\r\n")
    assert {b"Content-Length: 8", b"Content-Type: application/x+yaml"} < set(head.split(b"\r\n"))
    assert body == b'{"x": 1}'


@pytest.mark.parametrize("server", [[(OK,), (OK,)]], indirect=True)
def test_a_kept_connection_that_the_server_closed_is_made_anew(server: Server) -> None:
    assert server.http.get("/a") == server.http.get("/b") == (200, b"{}")
    assert server.accepted == 2


@pytest.mark.parametrize(
    "server",
    [
        pytest.param([(LAST,), (OK,)], id="that says so"),
        pytest.param([(OLD,), (OK,)], id="of an old server"),
        pytest.param([(TOO_MUCH,), (OK,)], id="with more than was asked for"),
    ],
    indirect=True,
)
def test_a_connection_that_ends_with_its_answer_is_not_kept(server: Server) -> None:
    assert server.http.get("/a") == server.http.get("/b") == (200, b"{}")


@pytest.mark.parametrize("server", [[(NOTED, EXTENDED, OK)]], indirect=True)
def test_what_http_allows_beside_the_answer_is_passed_over(server: Server) -> None:
    answers = [server.http.get("/a") for _ in range(3)]
    assert answers == [(200, b"{}"), (404, b"{}"), (200, b"{}")]
    assert server.accepted == 1


@pytest.mark.parametrize("server", [[(OK,)]], indirect=True)
def test_no_second_header_fits_into_a_path(server: Server) -> None:
    with pytest.raises(ValueError, match="end of a line"):
        server.http.get("/a\r\nX: y")
    assert server.http.get("/a") == (200, b"{}")
    assert len(server.asked) == 1


@pytest.mark.parametrize(
    "server",
    [
        pytest.param([(SILENCE,)], id="nothing"),
        pytest.param([(b"HTTP/1.1 2000 OK\r\n\r\n",)], id="no status"),
        pytest.param([(OK.replace(b"2\r", b"-2\r"),)], id="no length"),
        pytest.param([(b"HTTP/1.1 200 OK\r\nX: " + b"x" * 70000,)], id="an endless head"),
        pytest.param([(CHUNKED.replace(b"\r\n1\r\n{", b"\r\nx\r\n{"),)], id="no chunk"),
        pytest.param([(CHUNKED.replace(b"{\r\n", b"{}\r\n"),)], id="a chunk that is longer"),
        pytest.param([(CHUNKED.replace(b"chunked", b"gzip"),)], id="a coding that nobody asked for"),
        pytest.param([(b"HTTP/1.1 200 OK\r\n\r\n{}",)], id="no end"),
        pytest.param([(b"SSH-2.0-x\r\n",)], id="not HTTP"),
        pytest.param([(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{}",)], id="half of it"),
    ],
    indirect=True,
)
def test_what_is_no_answer_is_an_error_of_the_system(server: Server) -> None:
    with pytest.raises(OSError, match=r"answer|closed"):
        server.http.get("/a")
