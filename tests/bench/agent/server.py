# SPDX-License-Identifier: Apache-2.0
"""As much of an API server as an agent needs to publish: a node, a version, slices, a watch."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit


class FakeApiServer:
    """On loopback, as a context; `published` is set when a slice with devices was created."""

    def __init__(self) -> None:
        self.published = threading.Event()
        self._ended = threading.Event()
        published, ended = self.published, self._ended

        class Handler(BaseHTTPRequestHandler):
            """One connection."""

            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                url = urlsplit(self.path)
                if "watch=true" in url.query:
                    self.send_response(200)
                    self.send_header("Transfer-Encoding", "chunked")
                    self.end_headers()
                    ended.wait()
                    self.close_connection = True
                elif url.path == "/version":
                    self._answer({"major": "1", "minor": "37"})
                elif "/resourceclaims/" in url.path:
                    self.send_error(503)  # nobody is told that a claim is gone
                elif url.path.startswith("/api/v1/nodes/"):
                    self._answer({"metadata": {"uid": "node-uid"}})
                else:
                    self._answer({"metadata": {"resourceVersion": "1"}, "items": []})

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                body["metadata"] |= {"name": "slice", "uid": "slice-uid", "resourceVersion": "2"}
                self._answer(body)
                if "dryRun" not in self.path and body.get("spec", {}).get("devices"):
                    published.set()

            def _answer(self, body: dict[str, Any]) -> None:
                data = json.dumps(body).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, format: str, *args: object) -> None:
                """Quiet."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever)

    def kubeconfig(self) -> dict[str, Any]:
        """Credentials for it."""
        server = f"http://127.0.0.1:{self._server.server_address[1]}"
        return {
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }

    def __enter__(self) -> "FakeApiServer":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
