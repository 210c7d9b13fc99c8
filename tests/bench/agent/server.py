# SPDX-License-Identifier: Apache-2.0
"""As much of an API server as an agent needs: a node, a version, slices, a watch, and any number of claims.

A process of its own, so that its work is not counted as the plugin's: `python -m tests.bench.agent.server`.
"""

import json
import socket
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import Full, Queue
from typing import Any
from urllib.parse import urlsplit

from aliquot_api.names import DRIVER

NAMESPACE = "bench"
POOL = "bench"
ALONE = 24
SHARES = 128
_devices: Queue[list[str]] = Queue(maxsize=1)
"""Of the slice that was published."""


def claim_name(device: str, number: int, label: str) -> str:
    """A claim of this name is allocated on `device`."""
    return f"{device}.{label}-{number}"


def claim_uid(name: str) -> str:
    """UID of a claim."""
    return str(uuid.uuid5(uuid.NAMESPACE_URL, name))


def claim(name: str) -> dict[str, Any]:
    """An allocated claim."""
    result = {
        "request": "main",
        "driver": DRIVER,
        "pool": POOL,
        "device": name.partition(".")[0],
        "shareID": str(uuid.uuid5(uuid.NAMESPACE_DNS, name)),
        "consumedCapacity": {"memory": "100Mi", "cores": "5", "shares": "1"},
    }
    return {
        "metadata": {"namespace": NAMESPACE, "name": name, "uid": claim_uid(name), "resourceVersion": "1"},
        "spec": {"devices": {"requests": [{"name": "main", "exactly": {"deviceClassName": DRIVER}}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": "pod", "uid": claim_uid(f"pod of {name}")}],
        },
    }


def names(devices: Sequence[str], count: int, label: str) -> list[str]:
    """Claims, spread over the GPUs."""
    return [claim_name(devices[number % len(devices)], number, label) for number in range(count)]


def pods(devices: Sequence[str]) -> Iterator[dict[str, Any]]:
    """The pods of all claims that are prepared; a node's agent knows them before kubelet asks it."""
    for name in (*names(devices, ALONE, "alone"), *names(devices, SHARES, "burst")):
        yield {
            "metadata": {
                "namespace": NAMESPACE,
                "name": "pod",
                "uid": claim_uid(f"pod of {name}"),
                "resourceVersion": "1",
            },
            "spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": name}], "containers": []},
        }


def kubeconfig(port: int) -> dict[str, Any]:
    """Credentials for it."""
    return {
        "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
        "users": [{"name": "u", "user": {}}],
        "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
        "current-context": "x",
    }


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and body in one packet

    def do_GET(self) -> None:
        """Reads."""
        url = urlsplit(self.path)
        parts = url.path.split("/")
        if "watch=true" in url.query:
            self.send_response(200)
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            self.wfile.flush()
            if parts[-1] == "pods":
                for pod in pods(_devices.get()):
                    line = json.dumps({"type": "ADDED", "object": pod}).encode() + b"\n"
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
                self.wfile.flush()
            self.rfile.read(1)  # until the client goes
            self.close_connection = True
        elif parts[-2] == "resourceclaims":
            self._answer(claim(parts[-1]))
        elif url.path == "/version":
            self._answer({"major": "1", "minor": "37"})
        elif parts[-2] == "nodes":
            self._answer({"metadata": {"uid": "node-uid"}})
        elif parts[-2] == "configmaps":
            self._answer({"message": "not found"}, status=404)
        else:
            self._answer({"metadata": {"resourceVersion": "1"}, "items": []})

    def do_POST(self) -> None:
        """Creates."""
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        body["metadata"] |= {"name": "slice", "uid": "slice-uid", "resourceVersion": "2"}
        self._answer(body)
        if "dryRun" not in self.path and body.get("spec", {}).get("devices"):
            with suppress(Full):
                _devices.put_nowait([device["name"] for device in body["spec"]["devices"]])
            sys.stdout.write("published\n")
            sys.stdout.flush()

    do_PUT = do_POST

    def do_PATCH(self) -> None:
        """Reports and counts of events."""
        self.rfile.read(int(self.headers["Content-Length"]))
        self._answer({})

    def _answer(self, body: dict[str, Any], *, status: int = 200) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


class Server(ThreadingHTTPServer):
    """On loopback."""

    request_queue_size = 256
    daemon_threads = True

    def get_request(self) -> tuple[socket.socket, Any]:
        """A connection without Nagle's delays."""
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address


def main() -> int:
    server = Server(("127.0.0.1", 0), Handler)
    sys.stdout.write(f"{server.server_address[1]}\n")
    sys.stdout.flush()
    server.serve_forever()
    return 0


if __name__ == "__main__":
    sys.exit(main())
