# SPDX-License-Identifier: Apache-2.0
"""The agent's pages over HTTP: /metrics, /healthz, /readyz, /status; on all addresses, IPv6 and IPv4."""

import json
import logging
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

from aliquot_agent.readiness import Readiness

logger = logging.getLogger(__name__)

MOST_CONNECTIONS: Final = 32
Page = Callable[[], tuple[str, bytes]]
"""Content type and body."""


class _Server(ThreadingHTTPServer):
    """A thread for each connection, and not too many: the oldest one goes when there are.

    Kubelet's probes come last and are short, so that they get through whoever else holds connections.
    """

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        super().__init__(address, handler)
        self._open: deque[socket.socket] = deque()

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """One connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with suppress(ValueError):  # it was the oldest
                self._open.remove(request)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Begins with one connection; only the thread that accepts them is here."""
        while len(self._open) >= MOST_CONNECTIONS:
            with suppress(IndexError, OSError):  # it ends just now
                self._open.popleft().shutdown(socket.SHUT_RDWR)
        self._open.append(request)
        super().process_request(request, client_address)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A caller that goes away, or that we sent away, is no news."""
        if not isinstance(sys.exception(), OSError | ValueError):
            logger.exception("a page cannot be shown")


class _DualStackServer(_Server):
    address_family = socket.AF_INET6

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
            self._server: _Server = _DualStackServer(("::", port), Handler)
        except OSError:  # a kernel without IPv6
            self._server = _Server(("0.0.0.0", port), Handler)
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
