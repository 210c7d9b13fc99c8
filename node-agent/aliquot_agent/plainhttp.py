# SPDX-License-Identifier: Apache-2.0
"""Requests over kept connections with nothing in between: each Prepare of a burst waits for one.

By hand: the package `kubernetes` with urllib3 takes several times the processor time for it, the standard
library's client twice, and what an answer needs of HTTP/1.1 (RFC 9112) is little.
"""

import http.client
import re
import ssl
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from socket import socket
from typing import Final, NoReturn
from urllib.parse import urlsplit

_KEPT: Final = 64
_CLOSED: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""A kept connection that the server has closed, which it does when it likes: no answer, and no refusal."""
_AT_ONCE: Final = 65536
_LARGEST_HEAD: Final = 65536
_LARGEST_BODY: Final = 16 << 20
"""Far more than an object of the API server can hold."""
_END: Final = b"\r\n"
_STATUS: Final = re.compile(rb"HTTP/1\.([01]) ([1-9]\d\d)(?: .*)?")


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
    """Reads one answer. A connection that ends too early is a ConnectionError, what is no HTTP an OSError."""

    def __init__(self, connection: socket) -> None:
        self._connection = connection
        self._data = b""
        self._keeps = False
        """Whether the server keeps connections where it does not say otherwise."""
        self.more_may_follow = False
        """Whether the connection can be used again."""

    def read(self) -> tuple[int, bytes]:
        """Status and body."""
        status, headers = self._head()
        while 100 <= status < 200:  # notes on the way
            status, headers = self._head()
        coding = headers.get(b"transfer-encoding", b"").lower()
        length = headers.get(b"content-length")
        if coding == b"chunked":
            body = self._chunks()
        elif coding:
            _refuse(f"transfer coding {coding!r}")
        elif length is not None:
            body = self._exactly(_number(length, base=10))
        else:
            return status, self._rest()
        closes = b"close" in headers.get(b"connection", b"").lower()
        self.more_may_follow = self._keeps and not closes and not self._data
        return status, body

    def _head(self) -> tuple[int, dict[bytes, bytes]]:
        """Status and headers by name in small letters."""
        while (end := self._data.find(b"\r\n\r\n")) < 0:
            if len(self._data) > _LARGEST_HEAD or not b"HTTP/1.".startswith(self._data[:7]):
                _refuse(repr(self._data[:40]))
            self._more()
        first, *lines = self._data[:end].split(_END)
        self._data = self._data[end + 4 :]
        status = _STATUS.fullmatch(first)
        if status is None:
            _refuse(repr(first[:40]))
        headers = {}
        for line in lines:
            name, _, value = line.partition(b":")
            headers[name.lower()] = value.strip()
        self._keeps = status[1] == b"1"
        return int(status[2]), headers

    def _chunks(self) -> bytes:
        chunks = []
        left = _LARGEST_BODY
        while size := _number(self._line().partition(b";")[0], base=16):
            left -= size
            if left < 0:
                _refuse(f"more than {_LARGEST_BODY} bytes")
            chunks.append(self._exactly(size))
            if self._line():
                _refuse("a chunk without an end")
        while self._line():  # trailers
            pass
        return b"".join(chunks)

    def _line(self) -> bytes:
        while (end := self._data.find(_END)) < 0:
            if len(self._data) > _LARGEST_HEAD:
                _refuse("a line without an end")
            self._more()
        line, self._data = self._data[:end], self._data[end + 2 :]
        return line

    def _exactly(self, size: int) -> bytes:
        if size > _LARGEST_BODY:
            _refuse(f"{size} bytes")
        while len(self._data) < size:
            self._more()
        found, self._data = self._data[:size], self._data[size:]
        return found

    def _rest(self) -> bytes:
        """All that comes until the server closes."""
        with suppress(*_CLOSED):
            while len(self._data) <= _LARGEST_BODY:
                self._more()
            _refuse(f"more than {_LARGEST_BODY} bytes")
        return self._data

    def _more(self) -> None:
        data = self._connection.recv(_AT_ONCE)
        if not data:
            raise ConnectionResetError("the server closed the connection without an answer")
        self._data += data


def _number(text: bytes, *, base: int) -> int:
    try:
        return int(text, base) if text.strip().isalnum() else _refuse(f"length {text[:40]!r}")
    except ValueError:
        _refuse(f"length {text[:40]!r}")


def _refuse(what: str) -> NoReturn:
    raise OSError(f"no answer that is HTTP: {what}")
