# SPDX-License-Identifier: Apache-2.0
"""The agent's pages over HTTP: /metrics, /healthz, /readyz, /status; on all addresses, IPv6 and IPv4."""

import json
import socket
import threading
from collections.abc import Callable, Mapping
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from aliquot_agent.readiness import Readiness

Page = Callable[[], tuple[str, bytes]]
"""Content type and body."""


class _DualStackServer(ThreadingHTTPServer):
    address_family = socket.AF_INET6
    daemon_threads = True

    def server_bind(self) -> None:
        """Takes IPv4 callers on the same socket."""
        self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        super().server_bind()


class PageServer:
    """The server. `start`, then `stop`."""

    def __init__(self, *, port: int, pages: Mapping[str, Page], readiness: Readiness) -> None:
        def answer(path: str) -> tuple[HTTPStatus, str, bytes]:
            if path in pages:
                return HTTPStatus.OK, *pages[path]()
            if path == "/healthz":
                return HTTPStatus.OK, "text/plain", b"ok\n"
            if path == "/readyz":
                reasons = readiness.reasons()
                status = HTTPStatus.SERVICE_UNAVAILABLE if reasons else HTTPStatus.OK
                body = json.dumps({"ready": not reasons, "reasons": reasons}) + "\n"
                return status, "application/json", body.encode()
            known = ", ".join([*pages, "/healthz", "/readyz"])
            return HTTPStatus.NOT_FOUND, "text/plain", f"want one of {known}\n".encode()

        class Handler(BaseHTTPRequestHandler):
            """One request."""

            timeout = 10

            def do_GET(self) -> None:
                """Answers."""
                status, content_type, body = answer(self.path.partition("?")[0])
                self.send_response(status)
                self.send_header("Content-Type", content_type)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:
                """Scrapes are not news."""

        try:
            self._server: ThreadingHTTPServer = _DualStackServer(("::", port), Handler)
        except OSError:  # a kernel without IPv6
            self._server = ThreadingHTTPServer(("0.0.0.0", port), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, name="http")

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._server.server_address[1])

    def start(self) -> None:
        """Begins to answer."""
        self._thread.start()

    def stop(self) -> None:
        """Closes the port."""
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join()
        self._server.server_close()
