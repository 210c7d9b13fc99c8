# SPDX-License-Identifier: Apache-2.0
"""The client against a small server of our own, on loopback."""

import json
import threading
from collections.abc import Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from kubernetes import client

from aliquot_agent.errors import ApiError
from aliquot_agent.kube import Kube

CLAIMS = "/apis/resource.k8s.io/v1/namespaces/a/resourceclaims"


class Scene:
    """Answers by path; what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[tuple[str, str, str, Any]] = []
        self.end = threading.Event()
        scene = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                path = self.path.partition("?")[0]
                scene.asked.append((self.command, self.path, self.headers.get("Content-Type", ""), body))
                if "watch=true" in self.path:
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    event = b'{"type": "ADDED", "object": {"metadata": {"name": "s"}}}\n'
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(event), event))
                    scene.end.wait(20)
                    self.close_connection = True
                    return
                status, text = scene.answers.get(path, (404, '{"message": "no such thing"}'))
                self.send_response(status)
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text.encode())

            do_PATCH = do_POST = do_DELETE = do_GET

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever)
        self.thread.start()
        self.kube = kube_for(self.server.server_address[1])

    def stop(self) -> None:
        self.end.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


def kube_for(port: int) -> Kube:
    configuration = client.Configuration(host=f"http://127.0.0.1:{port}")
    configuration.retries = False
    return Kube(api_client=client.ApiClient(configuration), timeout_s=5)


@pytest.fixture
def scene() -> Iterator[Scene]:
    scene = Scene()
    yield scene
    scene.stop()


def test_objects_come_as_the_server_wrote_them(scene: Scene) -> None:
    scene.answers[f"{CLAIMS}/c"] = (200, '{"spec": {"fieldOfTheFuture": "1Gi"}}')
    assert scene.kube.get_claim("a", "c") == {"spec": {"fieldOfTheFuture": "1Gi"}}


@pytest.mark.parametrize(
    ("status", "text", "transient"),
    [
        pytest.param(404, '{"message": "gone"}', False, id="not found"),
        pytest.param(403, '{"message": "forbidden"}', False, id="forbidden"),
        pytest.param(429, '{"message": "slow down"}', True, id="too many"),
        pytest.param(503, "upstream is away", True, id="not JSON"),
    ],
)
def test_a_refusal_has_its_status_and_words(scene: Scene, status: int, text: str, transient: bool) -> None:
    scene.answers[f"{CLAIMS}/c"] = (status, text)
    with pytest.raises(ApiError) as caught:
        scene.kube.get_claim("a", "c")
    assert (caught.value.status, caught.value.transient) == (status, transient)
    assert text.strip('{}"').rpartition('"')[2] in str(caught.value)


def test_no_server_is_status_zero_and_transient() -> None:
    with pytest.raises(ApiError) as caught:
        kube_for(1).get_claim("a", "c")
    assert (caught.value.status, caught.value.transient) == (0, True)


def test_a_status_is_applied_server_side(scene: Scene) -> None:
    scene.answers[f"{CLAIMS}/c/status"] = (200, "{}")
    scene.kube.apply_claim_status("a", "c", {"status": {}}, manager="me")
    ((verb, path, content_type, body),) = scene.asked
    assert (verb, content_type, body) == ("PATCH", "application/apply-patch+yaml", {"status": {}})
    assert path.endswith("?fieldManager=me&force=true")


def test_a_dry_run_says_so(scene: Scene) -> None:
    scene.answers["/apis/resource.k8s.io/v1/resourceslices"] = (201, "{}")
    scene.kube.create_slice({}, dry_run=True)
    assert scene.asked[0][1].endswith("?dryRun=All")


def test_a_watch_ends_while_it_waits(scene: Scene) -> None:
    events = scene.kube.slice_watch("n")
    got: list[str] = []
    heard = threading.Event()

    def follow() -> None:
        with suppress(ApiError):  # how a connection that was cut may end
            for kind, slice_ in events.follow("1", timeout_s=60):
                got.append(f"{kind} {slice_['metadata']['name']}")
                heard.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert heard.wait(10)
    events.stop()
    thread.join(5)
    assert not thread.is_alive()
    assert got == ["ADDED s"]
    assert "fieldSelector=spec.nodeName%3Dn%2Cspec.driver%3Dgpu.aliquot.dev" in scene.asked[0][1]


def test_a_watch_that_was_stopped_before_it_began_ends_at_once(scene: Scene) -> None:
    events = scene.kube.slice_watch("n")
    events.stop()
    with suppress(ApiError):
        assert list(events.follow("1", timeout_s=60)) == []


def test_exactly_this_pod_is_evicted_or_deleted(scene: Scene) -> None:
    path = "/api/v1/namespaces/a/pods/train"
    scene.answers[f"{path}/eviction"] = (201, "{}")
    scene.answers[path] = (200, "{}")
    scene.kube.evict("a", "train", "uid-p")
    scene.kube.delete_pod("a", "train", "uid-p")
    (evict, delete) = scene.asked
    assert (evict[0], evict[1]) == ("POST", f"{path}/eviction")
    assert evict[3] == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"namespace": "a", "name": "train"},
        "deleteOptions": {"preconditions": {"uid": "uid-p"}},
    }
    assert (delete[0], delete[3]) == ("DELETE", {"preconditions": {"uid": "uid-p"}})
    scene.answers[f"{path}/eviction"] = (429, '{"message": "the disruption budget"}')
    with pytest.raises(ApiError, match="the disruption budget") as refused:
        scene.kube.evict("a", "train", "uid-p")
    assert refused.value.status == 429


def test_the_pods_of_a_node_and_all_claims_are_listed(scene: Scene) -> None:
    scene.answers["/api/v1/pods"] = (200, '{"metadata": {"resourceVersion": "7"}, "items": [{"a": 1}]}')
    scene.answers["/apis/resource.k8s.io/v1/resourceclaims"] = (200, '{"metadata": {}, "items": null}')
    assert scene.kube.list_pods("node-1") == ([{"a": 1}], "7")
    assert "fieldSelector=spec.nodeName%3Dnode-1" in scene.asked[0][1]
    assert scene.kube.list_claims() == []
