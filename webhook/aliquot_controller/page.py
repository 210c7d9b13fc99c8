# SPDX-License-Identifier: Apache-2.0
"""/healthz and /metrics of the controller, for the kubelet and Prometheus. Plain HTTP: nothing secret."""

import threading
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

_SILENCE_S: Final = 5.0
_MOST: Final = 16


class _Server(ThreadingHTTPServer):
    """Answers a bounded number of clients at a time and turns others away: no client costs more than that."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], pages: Mapping[str, Callable[[], bytes]]) -> None:
        self.pages = pages
        self._room = threading.BoundedSemaphore(_MOST)
        super().__init__(address, _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Called in the thread that accepts."""
        if self._room.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Called in a thread of the client's own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    timeout = _SILENCE_S
    server: _Server

    def do_GET(self) -> None:
        """One page."""
        page = self.server.pages.get(self.path)
        body = page() if page else b"not found\n"
        self.send_response(200 if page else 404)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Nothing: our log is for what happens, not for who asks."""


class Page:
    """The server, in a thread of its own."""

    def __init__(self, *, host: str, port: int, pages: Mapping[str, Callable[[], bytes]]) -> None:
        self._address = (host, port)
        self._pages = pages
        self._server: _Server | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Listen. Raises OSError if the port is taken."""
        self._server = _Server(self._address, self._pages)
        self._thread = threading.Thread(target=self._server.serve_forever, name="page", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens, once it does."""
        assert self._server is not None
        return int(self._server.server_address[1])

    def stop(self) -> None:
        """End."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._server.server_close()
            self._thread.join(_SILENCE_S)
