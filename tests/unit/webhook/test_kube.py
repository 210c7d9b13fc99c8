# SPDX-License-Identifier: Apache-2.0
"""The API client against a server on loopback."""

import http.server
import json
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from kubernetes import client

from aliquot_api.wire import JsonObject, dig, only
from aliquot_webhook.kube import MERGE_PATCH, ApiError, Kube

Answer = tuple[int, bytes]
TIMEOUT_S = 10


class Server:
    """Answers with what `answer` says, and remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, dict[str, str], bytes]] = []
        self.connections = 0
        self.answer: Callable[[str, str], Answer | None] = lambda method, path: (200, b"{}")
        self.events: list[bytes] = []
        self.watches = True
        self.release = threading.Event()
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                outer.connections += 1
                super().setup()

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                outer.asked.append((self.command, self.path, dict(self.headers), body))
                if outer.watches and "watch=true" in self.path:
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    for piece in outer.events:
                        self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
                        self.wfile.flush()
                    outer.release.wait(TIMEOUT_S)
                    self.wfile.write(b"0\r\n\r\n")
                    return
                answer = outer.answer(self.command, self.path)
                if answer is None:
                    self.close_connection = True
                    return
                self.send_response(answer[0])
                self.send_header("Content-Length", str(len(answer[1])))
                self.end_headers()
                self.wfile.write(answer[1])

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()

    def stop(self) -> None:
        self.release.set()
        self.http.shutdown()
        self.http.server_close()
        self.thread.join(TIMEOUT_S)


@pytest.fixture
def server() -> Iterator[Server]:
    server = Server()
    yield server
    server.stop()


@pytest.fixture
def configuration(server: Server) -> client.Configuration:
    configuration = client.Configuration()
    configuration.host = f"http://127.0.0.1:{server.http.server_address[1]}"
    return configuration


@pytest.fixture
def kube(configuration: client.Configuration) -> Kube:
    return Kube(configuration=configuration, timeout_s=TIMEOUT_S)


def test_calls_share_a_connection(server: Server, kube: Kube) -> None:
    for _ in range(5):
        kube.call("GET", "/version")

    assert server.connections == 1


def test_a_write_carries_its_body_and_type(server: Server, kube: Kube) -> None:
    kube.call("PATCH", "/a", query={"dryRun": "All"}, body={"b": 1}, content_type=MERGE_PATCH)

    method, path, headers, body = server.asked[0]
    assert (method, path, json.loads(body)) == ("PATCH", "/a?dryRun=All", {"b": 1})
    assert headers["Content-Type"] == MERGE_PATCH


def test_a_rotated_token_is_used(server: Server, configuration: client.Configuration) -> None:
    tokens = iter(["Bearer one", "Bearer two"])

    def refresh(settings: client.Configuration) -> None:
        settings.api_key["authorization"] = next(tokens)

    configuration.api_key["authorization"] = "Bearer none"
    configuration.refresh_api_key_hook = refresh  # type: ignore[assignment] # untyped there
    kube = Kube(configuration=configuration, timeout_s=TIMEOUT_S)
    kube.call("GET", "/a")
    kube.call("GET", "/a")

    assert [each[2]["authorization"] for each in server.asked] == ["Bearer one", "Bearer two"]


@pytest.mark.parametrize(
    ("answer", "status", "message"),
    [
        ((403, b'{"message":"not you"}'), 403, "not you"),
        ((500, b"{}"), 500, "HTTP status 500"),
        ((502, b"<html>"), 502, "unreadable answer"),
        ((200, b"<html>"), 200, "unreadable answer"),
    ],
)
def test_anything_but_success_is_an_error(
    server: Server, kube: Kube, answer: Answer, status: int, message: str
) -> None:
    server.answer = lambda method, path: answer

    with pytest.raises(ApiError, match=message) as caught:
        kube.call("GET", "/a")
    assert caught.value.status == status


def test_a_connection_that_the_server_closed_is_tried_once_more(server: Server, kube: Kube) -> None:
    server.answer = lambda method, path: (200, b'{"a":1}') if len(server.asked) > 1 else None

    assert kube.call("POST", "/a", body={}) == {"a": 1}


def test_a_server_that_is_not_there_has_status_0(configuration: client.Configuration) -> None:
    configuration.host = "http://127.0.0.1:1"

    with pytest.raises(ApiError) as caught:
        Kube(configuration=configuration, timeout_s=1).call("GET", "/a")
    assert caught.value.status == 0


def test_a_silent_server_does_not_hold_us(server: Server, configuration: client.Configuration) -> None:
    def answer(method: str, path: str) -> Answer:
        server.release.wait(TIMEOUT_S)
        return (200, b"{}")

    server.answer = answer
    with pytest.raises(ApiError, match="timed out"):
        Kube(configuration=configuration, timeout_s=0.2).call("GET", "/a")


def test_a_list_comes_page_by_page(server: Server, kube: Kube) -> None:
    def answer(method: str, path: str) -> Answer:
        last = "continue=next" in path
        metadata = {"resourceVersion": "7"} if last else {"resourceVersion": "7", "continue": "next"}
        return (200, json.dumps({"metadata": metadata, "items": [{"last": last}]}).encode())

    server.answer = answer
    assert kube.list_all("/things", {"labelSelector": "a=b"}) == ([{"last": False}, {"last": True}], "7")
    assert all("labelSelector=a%3Db" in path for _, path, _, _ in server.asked)


def test_a_list_leaves_out_who_wrote_what(server: Server, kube: Kube) -> None:
    """Thousands of objects are held at once."""
    metadata = {"name": "a", "managedFields": [{"manager": "kubectl"}]}
    server.answer = lambda method, path: (200, json.dumps({"items": [{"metadata": metadata}]}).encode())
    assert kube.list_all("/things", {})[0] == [{"metadata": {"name": "a"}}]


def test_of_a_list_is_kept_what_is_asked_for(server: Server, kube: Kube) -> None:
    """Page by page: what is left out is never held for the whole list."""
    held = [{"metadata": {"name": name, "labels": {"a": "b"}}, "spec": {}} for name in ("a", "b")]
    server.answer = lambda method, path: (200, json.dumps({"items": held}).encode())

    def keep(each: JsonObject) -> JsonObject | None:
        return only(each, metadata=("name", "uid")) if dig(each, "metadata", "name") == "b" else None

    assert kube.list_all("/things", {}, keep)[0] == [{"metadata": {"name": "b"}}]


def test_a_watch_gives_whole_events_however_they_are_cut(server: Server, kube: Kube) -> None:
    server.events = [b'{"type":"ADDED"', b'}\n{"type":"DELETED"}\n{"ty', b'pe":"BOOKMARK"}\n']
    server.release.set()
    with kube.watch("/things", {}, version="7") as watch:
        kinds = [event["type"] for event in watch]

    assert kinds == ["ADDED", "DELETED", "BOOKMARK"]
    assert "resourceVersion=7" in server.asked[0][1]


def test_a_watch_that_is_refused_is_an_error(server: Server, kube: Kube) -> None:
    server.watches = False
    server.answer = lambda method, path: (410, b'{"message":"too old"}')

    with pytest.raises(ApiError, match="too old"), kube.watch("/things", {}, version="7") as watch:
        list(watch)


def test_close_ends_a_watch_that_waits(server: Server, kube: Kube) -> None:
    server.events = [b'{"type":"ADDED"}\n']
    with kube.watch("/things", {}, version="7") as watch:
        seen = []
        for event in watch:
            seen.append(event)
            threading.Timer(0.05, watch.close).start()
    assert len(seen) == 1
