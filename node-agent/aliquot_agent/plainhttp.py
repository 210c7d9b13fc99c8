# SPDX-License-Identifier: Apache-2.0
"""Requests over kept connections with nothing in between: each Prepare of a burst waits for one.

The package `kubernetes` with urllib3 takes several times the processor time for it, the standard library's
client twice. What is left to do here is the head of a request; answers are read by httptools.
"""

import http.client
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from socket import socket
from typing import Final
from urllib.parse import urlsplit

import httptools

_KEPT: Final = 64
_CLOSED: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""A kept connection that the server has closed, which it does when it likes: no answer, and no refusal."""
_AT_ONCE: Final = 65536
_LARGEST: Final = 16 << 20
"""Far more than an object of the API server can hold."""


class PlainHttp:
    """Requests to one server, whose address may have a path. Thread-safe.

    All can be sent twice: a kept connection may end before its answer, and whatever was asked is asked anew.
    """

    def __init__(
        self,
        *,
        server: str,
        tls: Callable[[], ssl.SSLContext],
        headers: Callable[[], Mapping[str, str]],
        timeout_s: float,
    ) -> None:
        url = urlsplit(server)
        self._host, self._port = url.hostname or "", url.port
        self._authority = url.netloc.rpartition("@")[2]
        self._prefix = url.path.rstrip("/")
        self._tls = tls if url.scheme == "https" else None
        self._headers = headers
        self._timeout_s = timeout_s
        self._kept: deque[socket] = deque()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body; raises OSError."""
        return self._send(f"GET {self._prefix}{path} HTTP/1.1", (), b"")

    def patch(self, path: str, body: bytes, *, content_type: str) -> tuple[int, bytes]:
        """Status and body; raises OSError. For changes that can come twice."""
        headers = (f"Content-Type: {content_type}", f"Content-Length: {len(body)}")
        return self._send(f"PATCH {self._prefix}{path} HTTP/1.1", headers, body)

    def _send(self, first: str, more: Sequence[str], body: bytes) -> tuple[int, bytes]:
        lines = [first, f"Host: {self._authority}", *more]
        lines += [f"{name}: {value}" for name, value in self._headers().items()]
        head = "\r\n".join((*lines, "", "")).encode("latin-1")
        if head.count(b"\n") != len(lines) + 1:
            raise ValueError("a path or a header holds the end of a line")
        with suppress(IndexError):
            kept = self._kept.pop()
            with suppress(*_CLOSED):
                return self._ask(kept, head + body)
        return self._ask(self._connection(), head + body)

    def _connection(self) -> socket:
        """A new one, as the standard library makes it."""
        made = http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        if self._tls is not None:
            made = http.client.HTTPSConnection(
                self._host, self._port, timeout=self._timeout_s, context=self._tls()
            )
        made.connect()
        return made.sock

    def _ask(self, connection: socket, request: bytes) -> tuple[int, bytes]:
        keep = False
        try:
            connection.sendall(request)
            answer = _Answer(connection)
            status, body = answer.read()
            keep = answer.more_may_follow
        finally:
            if keep and len(self._kept) < _KEPT:
                self._kept.append(connection)
            else:
                connection.close()
        return status, body


class _Answer:
    """Reads one answer. A connection that ends too early is a ConnectionError, what is no HTTP an OSError.

    So is an answer without a length, which ends with its connection: the API server says how long its are.
    """

    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self._parser = httptools.HttpResponseParser(self)
        self._body: list[bytes] = []
        self._complete = False
        self._status = 0
        self.more_may_follow = False
        """Whether the connection can be used again."""

    def read(self) -> tuple[int, bytes]:
        """Status and body; once."""
        try:
            self._read()
        finally:
            del self._parser  # which refers to this object
        return self._status, b"".join(self._body)

    def _read(self) -> None:
        left = _LARGEST
        while not self._complete:
            data = self._connection.recv(_AT_ONCE)
            left -= len(data)
            if not data:
                raise ConnectionResetError("the server closed the connection without an answer")
            if left < 0:
                raise OSError(f"an answer of more than {_LARGEST} bytes")
            try:
                self._parser.feed_data(data)
            except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
                self.more_may_follow = False
                if not self._complete:
                    raise OSError(f"no answer that is HTTP: {error}") from error

    def on_message_begin(self) -> None:
        """Of the parser: more than was asked for, if anything came before."""
        self.more_may_follow = False

    def on_body(self, data: bytes) -> None:
        """Of the parser."""
        if not self._complete:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """Of the parser; notes on the way (1xx) are complete messages, too."""
        status = self._parser.get_status_code()
        if not self._complete and status >= 200:
            self._status, self._complete = status, True
            self.more_may_follow = self._parser.should_keep_alive()
