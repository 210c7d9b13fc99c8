# SPDX-License-Identifier: Apache-2.0
"""HTTPS by gunicorn's threaded worker.

Why gunicorn: it keeps connections alive (the API server reuses its own for every review), answers what is
under way after SIGTERM, does TLS handshakes in its threads and not in the accepting loop, so that a silent
client holds up nobody, parks idle connections in a poller, where they cost no thread, asks for its TLS
context at every connection, so that a certificate can be renewed, and watches over its worker process.
"""

import errno
import functools
import logging
import os
import select
import selectors
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, Protocol
from wsgiref.types import WSGIApplication

from gunicorn import util
from gunicorn.app.base import BaseApplication
from gunicorn.glogging import Logger
from gunicorn.workers.gthread import _DEFER, TConn, ThreadWorker

from aliquot_webhook.settings import Settings
from aliquot_webhook.tls import ImpatientSocket, ServingContext

logger = logging.getLogger(__name__)

GRACE_S: Final = 20
"""At the end of the process, for what is under way."""
_KEEPALIVE_S: Final = 120
"""Longer than the 90 s for which the API server keeps an idle connection: it is the one that closes."""
_IN_A_MOMENT_MS: Final = 20
"""Most clients send their request together with the end of the handshake."""
_MOST_CONNECTIONS: Final = 500
"""An API server has some tens. Each idle one costs some 70 KB, most of it OpenSSL's."""


class Connection(TConn):  # type: ignore[misc] # gunicorn has no types
    """A connection whose handshake and requests have a limited time, and whose close does not wait (see
    Worker.handle)."""

    def init(self) -> None:
        """Called by gunicorn before each request, in the thread that serves it; the first time it makes the
        TLS socket and shakes hands."""
        super().init()
        if isinstance(self.sock, ImpatientSocket):
            self.sock.begin()

    def is_asked(self) -> bool:
        """Whether a request has begun, or does in a moment."""
        readable = select.poll()
        readable.register(self.sock, select.POLLIN)
        return bool(self.sock.pending() or readable.poll(_IN_A_MOMENT_MS))

    def close(self, graceful: bool = False) -> None:
        """Called by gunicorn in the thread that accepts."""
        super().close()


class Worker(ThreadWorker):  # type: ignore[misc] # gunicorn has no types
    """gunicorn's threaded worker, in which a client, of which anybody in the cluster can be one, costs
    little while it does nothing.

    The original lets a thread wait up to 5 s for a client's first byte, and without end for its first
    request: a few hundred silent connections would keep all threads from the API server for minutes. An API
    server has such connections itself: one that it has opened for a request, which then found another one
    free, is kept for later. To close that could lose the request that comes on it just then: Go repeats a
    request only if its connection had been used before. And the original waits up to 2 s for a refused client
    to close, in the one thread that accepts everybody.
    """

    def handle(self, conn: Connection) -> Any:
        """Called by gunicorn in a thread of the pool: one request."""
        stays_open: Any = False
        try:
            if not conn.initialized:
                conn.init()
                if not conn.is_asked():
                    return _DEFER
            stays_open = super().handle(conn)
        except OSError:  # TLS errors among them: a client that means somebody else
            logger.debug("no handshake")
        if not stays_open:
            # Waits until the client has read the answer: closing at once could cut it off.
            util.close_graceful(conn.sock)
        return stays_open

    def accept(self, listener: Any) -> None:
        """A client has connected: park it with those that have been deferred for their silence."""
        try:
            client, address = listener.accept()
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.ECONNABORTED):
                raise
            return
        self.nr_conns += 1
        if self.nr_conns > _MOST_CONNECTIONS:
            self._drop_oldest()
        connection = Connection(self.cfg, client, address, listener.getsockname())
        connection.set_timeout()
        self.pending_conns.append(connection)
        readable = functools.partial(self.on_pending_socket_readable, connection)
        self.poller.register(connection.sock, selectors.EVENT_READ, readable)

    def _cap_keepalive(self, deadline: float) -> None:
        """Called by gunicorn at the end of the process: which connections it does not wait for any longer."""
        super()._cap_keepalive(deadline)
        for connection in self.pending_conns:
            connection.timeout = min(connection.timeout, deadline)

    def _drop_oldest(self) -> None:
        """Make room: end the connection that has been silent for longest, before all one that has never said
        anything. So nobody keeps the API server out by holding connections."""
        for waiting in (self.pending_conns, self.keepalived_conns):
            if waiting:
                oldest = waiting.popleft()
                self.poller.unregister(oldest.sock)
                self.nr_conns -= 1
                oldest.close()
                return


class Log(Logger):  # type: ignore[misc] # gunicorn has no types
    """gunicorn's messages, in the process's own format."""

    def setup(self, cfg: object) -> None:
        """Called by gunicorn. What clients do wrong in TLS is no warning of ours."""
        self.error_log.setLevel(logging.ERROR)
        self.error_log.propagate = True
        self.access_log.disabled = True


class Service(Protocol):
    """What is served."""

    app: WSGIApplication

    def start(self) -> None:
        """Start its threads."""

    def stop(self) -> None:
        """Stop them."""


class Server(BaseApplication):  # type: ignore[misc] # gunicorn has no types
    """The webhook as a gunicorn application. The worker process builds and owns everything."""

    def __init__(self, *, settings: Settings, build: Callable[[ServingContext], Service]) -> None:
        self._settings = settings
        self._build = build
        authority = settings.client_authority
        self._serving = ServingContext(client_authority=Path(authority).read_text() if authority else "")
        self._service: Service | None = None
        super().__init__()

    def load_config(self) -> None:
        """Called by gunicorn."""
        settings = self._settings
        options: dict[str, object] = {
            "bind": f"{settings.host}:{settings.port}",
            "worker_class": Worker,
            "threads": settings.threads,
            "keepalive": _KEEPALIVE_S,
            # Never reached: what is above our own limit makes room (see Worker.accept), and is not left
            # waiting.
            "worker_connections": 2 * _MOST_CONNECTIONS,
            "graceful_timeout": GRACE_S,
            # Where it is kept only says that TLS is wanted; the context below is what counts.
            "certfile": os.devnull,
            "ssl_context": self._ssl_context,
            "worker_exit": self._worker_exit,
            "worker_tmp_dir": "/dev/shm",
            "control_socket_disable": True,
            "logger_class": Log,
        }
        for key, value in options.items():
            self.cfg.set(key, value)

    def load(self) -> WSGIApplication:
        """Called by gunicorn in the worker: threads do not survive a fork, so they start here."""
        self._service = self._build(self._serving)
        self._service.start()
        return self._service.app

    def _ssl_context(self, config: object, default_factory: Callable[[], ssl.SSLContext]) -> ssl.SSLContext:
        return self._serving.context

    def _worker_exit(self, server: object, worker: object) -> None:
        if self._service is not None:
            self._service.stop()
        logging.shutdown()
