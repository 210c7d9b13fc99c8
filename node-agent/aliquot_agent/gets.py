# SPDX-License-Identifier: Apache-2.0
"""GET over kept connections with nothing in between: each Prepare of a burst waits for one.

By the standard library: the package `kubernetes` and urllib3 take three times the processor time for it.
"""

import http.client
import ssl
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final
from urllib.parse import urlsplit

_KEPT: Final = 64
_CLOSED: Final = (ConnectionError, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""A kept connection that the server has closed, which it does when it likes: no answer, and no refusal."""


class Gets:
    """GETs of one server, whose address may have a path. Thread-safe."""

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
        self._prefix = url.path.rstrip("/")
        self._tls = tls if url.scheme == "https" else None
        self._headers = headers
        self._timeout_s = timeout_s
        self._kept: deque[http.client.HTTPConnection] = deque()

    def get(self, path: str) -> tuple[int, bytes]:
        """Status and body; raises OSError."""
        try:
            with suppress(IndexError):
                kept = self._kept.pop()
                with suppress(*_CLOSED):
                    return self._ask(kept, path)
            return self._ask(self._connection(), path)
        except http.client.HTTPException as error:
            raise OSError(f"no answer that is HTTP: {error!r}") from error

    def _connection(self) -> http.client.HTTPConnection:
        if self._tls is None:
            return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)
        # Made for each connection: certificates on disk are renewed.
        context = self._tls()
        return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=context)

    def _ask(self, connection: http.client.HTTPConnection, path: str) -> tuple[int, bytes]:
        keep = False
        try:
            connection.request("GET", self._prefix + path, headers=dict(self._headers()))
            response = connection.getresponse()
            body = response.read()
            keep = not response.will_close
        finally:
            if keep and len(self._kept) < _KEPT:
                self._kept.append(connection)
            else:
                connection.close()
        return response.status, body
