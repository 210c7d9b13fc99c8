# SPDX-License-Identifier: Apache-2.0
"""The certificates at work: kept in a Secret that all replicas share, and served without a restart.

Whoever comes first makes the Secret; the API server's own checks (409 for an existing name or an older
version) decide between several, and the losers take what the winner wrote.
"""

import base64
import binascii
import errno
import os
import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from aliquot_api.wire import JsonObject, obj, text
from aliquot_webhook import certs
from aliquot_webhook.certs import Bundle
from aliquot_webhook.kube import Api, ApiError

_FIELDS: Final = {
    "authority": "ca.crt",
    "authority_key": "ca.key",
    "certificate": "tls.crt",
    "key": "tls.key",
}
_ATTEMPTS: Final = 5
SILENCE_S: Final = 3.0
"""How long a client may keep a thread waiting for the next byte."""
REQUEST_S: Final = 6.0
"""How long for all bytes of a request. The API server gives up after the time-out of our configuration, 5
s."""


class CertificateStore:
    """The Secret, made and renewed by whoever looks at it."""

    def __init__(
        self,
        *,
        api: Api,
        namespace: str,
        secret: str,
        hosts: Sequence[str],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._api = api
        self._namespace = namespace
        self._secret = secret
        self._hosts = tuple(hosts)
        self._now = now
        self._last: Bundle | None = None

    def current(self) -> Bundle:
        """A valid bundle, that of the Secret. Raises ApiError.

        A Secret that is gone comes back as it was, so that its loss is noticed by nobody; one that is there
        but not readable (empty, say) is made anew.
        """
        collection = f"/api/v1/namespaces/{self._namespace}/secrets"
        for _ in range(_ATTEMPTS):
            secret = self._read(f"{collection}/{self._secret}")
            present = self._last if secret is None else _decode(secret)
            better = certs.renewed(present, hosts=self._hosts, now=self._now())
            if secret is not None and present is not None and better is None:
                self._last = present
                return present
            bundle = better or present
            assert bundle is not None
            try:
                if secret is None:
                    self._api.call("POST", collection, body=self._body(bundle, {"name": self._secret}))
                else:
                    # The metadata carries the resourceVersion that we have read: nobody is overwritten.
                    body = self._body(bundle, obj(secret.get("metadata")))
                    self._api.call("PUT", f"{collection}/{self._secret}", body=body)
            except ApiError as error:
                if error.status in (404, 409):
                    continue
                raise
            self._last = bundle
            return bundle
        raise ApiError(status=409, message=f"secret {self._secret} keeps changing")

    def _read(self, path: str) -> JsonObject | None:
        try:
            return self._api.call("GET", path)
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def _body(self, bundle: Bundle, metadata: JsonObject) -> JsonObject:
        data = {key: base64.b64encode(getattr(bundle, field)).decode() for field, key in _FIELDS.items()}
        return {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": metadata,
            "type": "kubernetes.io/tls",
            "data": data,
        }


def _decode(secret: JsonObject) -> Bundle | None:
    data = obj(secret.get("data"))
    try:
        parts = {
            field: base64.b64decode(text(data.get(key)), validate=True) for field, key in _FIELDS.items()
        }
    except binascii.Error:
        return None
    return Bundle(**parts)


class CertificateFolder:
    """A serving certificate that somebody else renews, as cert-manager does in a mounted Secret."""

    def __init__(self, *, folder: Path) -> None:
        self._folder = folder

    def current(self) -> Bundle:
        """What lies there now. Raises OSError. Between two writes the pair may not fit: loading fails then,
        and the next look is a moment later."""
        return Bundle(
            authority=b"",
            authority_key=b"",
            certificate=(self._folder / "tls.crt").read_bytes(),
            key=(self._folder / "tls.key").read_bytes(),
        )


class ImpatientSocket(ssl.SSLSocket):
    """A server's TLS socket whose blocking calls end: a client that falls silent in the middle of a
    handshake or a request, or lets it drip, must not keep a thread. To the server it looks like a lost
    connection."""

    _ends_at_s: float | None = None

    def begin(self) -> None:
        """A new request: from now on its bytes have a limited time."""
        self._ends_at_s = time.monotonic() + REQUEST_S

    def settimeout(self, value: float | None) -> None:
        """As for any socket, but never without end."""
        super().settimeout(SILENCE_S if value is None else value)

    def setblocking(self, flag: bool) -> None:
        """As for any socket, but blocking is not without end."""
        self.settimeout(None if flag else 0.0)

    def do_handshake(self, block: bool = False) -> None:
        """As for any TLS socket."""
        with self._lost_when_silent():
            super().do_handshake(block)

    def read(self, len: int = 1024, buffer: Any = None) -> Any:  # Any: bytes-like
        """As for any TLS socket."""
        with self._lost_when_silent():
            return super().read(len, buffer)

    @contextmanager
    def _lost_when_silent(self) -> Iterator[None]:
        if self._ends_at_s is not None and self.gettimeout() != 0.0:
            left_s = self._ends_at_s - time.monotonic()
            if left_s <= 0:
                raise ConnectionResetError(errno.ECONNRESET, "the client was too slow")
            self.settimeout(min(SILENCE_S, left_s))
        try:
            yield
        except TimeoutError as error:
            raise ConnectionResetError(errno.ECONNRESET, "the client fell silent") from error


class ServingContext:
    """The TLS settings of the server. A new certificate counts for connections made after it."""

    def __init__(self, *, client_authority: str = "") -> None:
        """With `client_authority` (PEM) clients may show a certificate, which has to be signed by it.
        They need not: kubelet's probes have none."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.sslsocket_class = ImpatientSocket
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        if client_authority:
            self.context.load_verify_locations(cadata=client_authority)
            self.context.verify_mode = ssl.CERT_OPTIONAL
        self._loaded: Bundle | None = None

    @property
    def loaded(self) -> bool:
        """Whether there is a certificate at all yet."""
        return self._loaded is not None

    @property
    def authority(self) -> bytes:
        """Who has signed what is served; empty while nothing is, or where that is not our business."""
        return self._loaded.authority if self._loaded else b""

    def use(self, bundle: Bundle) -> bool:
        """Serve `bundle` from now on; False if it is served already."""
        if bundle == self._loaded:
            return False
        # OpenSSL reads files only; a memory file keeps the key off every disk.
        descriptor = os.memfd_create("aliquot-tls", os.MFD_CLOEXEC)
        with os.fdopen(descriptor, "wb") as memory:
            memory.write(bundle.key + bundle.certificate)
            memory.flush()
            self.context.load_cert_chain(f"/proc/self/fd/{descriptor}")
        self._loaded = bundle
        return True


def client_name(connection: object) -> str | None:
    """The common name in the certificate that a client has shown and that was verified; None without one."""
    shown = connection.getpeercert() if isinstance(connection, ssl.SSLSocket) else None
    if not shown:
        return None
    subject: Any = shown.get("subject", ())  # tuples of pairs
    names = [str(value) for part in subject for key, value in part if key == "commonName"]
    return names[0] if names else ""
